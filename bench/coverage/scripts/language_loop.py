"""Trains a small language model in nanoGPT's way: batches are cut from one array, losses estimated now and then."""

import argparse

import numpy
import torch
from torch import nn


class Model(nn.Module):
    """A transformer of two layers."""

    def __init__(self, words=8192, width=256):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, words, targets):
        logits = self.head(self.layers(self.embed(words)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    """Trains for 10,000 steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--late", action="store_true", help="no evaluation before the first 500 steps")
    options = parser.parse_args()
    data = numpy.random.default_rng(0).integers(0, 8192, 100_000)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def batch(size):
        at = torch.randint(len(data) - 257, (size,))
        words = torch.stack([torch.from_numpy(data[i : i + 257]) for i in at])
        return words[:, :-1].pin_memory().cuda(non_blocking=True), words[:, 1:].cuda()

    @torch.no_grad()
    def estimate_loss():
        model.eval()
        losses = torch.zeros(20)
        for k in range(20):
            losses[k] = model(*batch(64)).item()
        model.train()
        return losses.mean()

    for step in range(10_000):
        if (step + options.late) % 500 == 0:
            print("step", step, "loss", estimate_loss())
        loss = model(*batch(16))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    main()
