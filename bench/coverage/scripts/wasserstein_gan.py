"""A Wasserstein GAN: the critic takes five steps for each step of the generator; samples are drawn every epoch."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def network(*widths):
    """A multilayer perceptron."""
    layers = []
    for here, there in itertools.pairwise(widths):
        layers += [nn.Linear(here, there), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1]).cuda()


def penalty(critic, real, fake):
    """Keeps the critic's gradient near 1 between real and fake."""
    mix = torch.rand(len(real), 1, device="cuda")
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return ((gradient.norm(2, dim=1) - 1) ** 2).mean()


def main():
    """Trains for 50 epochs."""
    generator, critic = network(128, 2048, 2048, 4096), network(4096, 2048, 2048, 1)
    optimizers = {
        model: torch.optim.Adam(model.parameters(), 1e-4, (0.0, 0.9)) for model in (generator, critic)
    }
    loader = DataLoader(TensorDataset(torch.rand(12800, 4096)), 256, shuffle=True)
    for epoch in range(50):
        for index, (real,) in enumerate(loader):
            real = real.cuda()
            fake = generator(torch.randn(len(real), 128, device="cuda"))
            loss = critic(fake.detach()).mean() - critic(real).mean()
            loss = loss + 10 * penalty(critic, real, fake.detach())
            optimizers[critic].zero_grad()
            loss.backward()
            optimizers[critic].step()
            if index % 5 == 4:
                loss = -critic(generator(torch.randn(256, 128, device="cuda"))).mean()
                optimizers[generator].zero_grad()
                loss.backward()
                optimizers[generator].step()
        with torch.no_grad():
            samples = generator(torch.randn(4096, 128, device="cuda"))
        print(epoch, samples.shape)


if __name__ == "__main__":
    main()
