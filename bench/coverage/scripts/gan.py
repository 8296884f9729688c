"""A DCGAN: generator and discriminator with an optimizer each, on made-up 64 x 64 images."""

import argparse

import torch
import torch.nn as nn
import torchvision
from torch.utils.data import DataLoader
from torchvision import transforms


def generator(latent, width):
    channels = [latent, 8 * width, 4 * width, 2 * width, width]
    layers = []
    for level, (a, b) in enumerate(zip(channels, channels[1:])):
        stride, padding = (1, 0) if level == 0 else (2, 1)
        layers += [nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())


def discriminator(width):
    channels = [width, 2 * width, 4 * width, 8 * width]
    layers = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    for a, b in zip(channels, channels[1:]):
        layers += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2, inplace=True)]
    return nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Flatten(0))


def weights_init(module):
    name = type(module).__name__
    if "Conv" in name:
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif "BatchNorm" in name:
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--latent", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    make = generator(args.latent, args.width).cuda().apply(weights_init)
    judge = discriminator(args.width).cuda().apply(weights_init)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)])
    loader = DataLoader(
        torchvision.datasets.FakeData(2000, (3, 64, 64), 10, transform), args.batch_size, shuffle=True
    )
    criterion = nn.BCEWithLogitsLoss()
    fixed = torch.randn(64, args.latent, 1, 1, device="cuda")
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_make = torch.optim.Adam(make.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for epoch in range(args.epochs):
        for step, (real, _) in enumerate(loader):
            real = real.cuda()
            ones, zeros = torch.ones(len(real), device="cuda"), torch.zeros(len(real), device="cuda")
            fake = make(torch.randn(len(real), args.latent, 1, 1, device="cuda"))

            judge.zero_grad()
            loss_real = criterion(judge(real), ones)
            loss_real.backward()
            loss_fake = criterion(judge(fake.detach()), zeros)
            loss_fake.backward()
            of_judge.step()

            make.zero_grad()
            loss_make = criterion(judge(fake), ones)
            loss_make.backward()
            of_make.step()
            print(
                f"{epoch} {step}: discriminator {(loss_real + loss_fake).item():.3f}, generator {loss_make.item():.3f}"
            )
        with torch.no_grad():
            samples = make(fixed).cpu()
        torch.save(samples, f"samples{epoch}.pt")


if __name__ == "__main__":
    main()
