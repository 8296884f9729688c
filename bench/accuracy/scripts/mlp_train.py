"""Trains a multilayer perceptron on random data with Adam, as GPUMemNet's generator of networks does.

github.com/itu-rad/GPUMemNet describes the shapes: a pyramid halves the width with each layer, a bottleneck
once more at its end, `gradual` takes equal steps from input to output; a softmax is part of the network.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, STEPS = 4096, 8
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "prelu": nn.PReLU, "elu": nn.ELU, "selu": nn.SELU,
    "tanh": nn.Tanh, "softplus": nn.Softplus, "swish": nn.SiLU, "mish": nn.Mish, "gelu": nn.GELU,
    "identity": nn.Identity,
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--input", type=int, required=True)
    options.add_argument("--output", type=int, required=True)
    options.add_argument("--depth", type=int, required=True)
    options.add_argument(
        "--architecture", required=True, choices=["pyramid", "uniform", "bottleneck", "gradual"]
    )
    options.add_argument("--batch", type=int, required=True)
    options.add_argument("--activation", default="relu", choices=list(ACTIVATIONS))
    options.add_argument("--dropout", type=float, default=0.0)
    options.add_argument("--batch-norm", action="store_true")
    return options


def widths(options: argparse.Namespace) -> Iterator[int]:
    """The width of the input and of each hidden layer."""
    width = options.input
    yield width
    step = (options.input - options.output) // options.depth
    for _ in range(options.depth):
        if options.architecture in ("pyramid", "bottleneck"):
            width = max(width // 2, options.output)
        elif options.architecture == "gradual":
            width = max(width - step, options.output)
        yield width
    if options.architecture == "bottleneck":
        yield max(width // 2, options.output)


def build(options: argparse.Namespace) -> nn.Module:
    """The network."""
    layers: list[nn.Module] = []
    sizes = list(widths(options))
    for inputs, outputs in zip(sizes, sizes[1:]):  # noqa: B905, RUF007 (Python 3.9)
        layers.append(nn.Linear(inputs, outputs))
        if options.batch_norm:
            layers.append(nn.BatchNorm1d(outputs))
        layers.append(ACTIVATIONS[options.activation]())
        if options.dropout:
            layers.append(nn.Dropout(options.dropout))
    layers += [nn.Linear(sizes[-1], options.output), nn.Softmax(dim=1)]
    return nn.Sequential(*layers)


def example(options: argparse.Namespace) -> dict[str, torch.Tensor]:
    """The input of one step."""
    return {"input": torch.empty(options.batch, options.input)}


def main() -> None:
    """Trains."""
    options = parser().parse_args()
    data = TensorDataset(torch.rand(SAMPLES, options.input), torch.randint(0, options.output, (SAMPLES,)))
    loader = DataLoader(data, batch_size=options.batch, shuffle=True)
    device = torch.device("cuda")
    model = build(options).to(device)
    with torch.no_grad():  # the summary that the generator prints of every network
        model.train()
        model(torch.rand(2, options.input, device=device))
    optimizer = torch.optim.Adam(model.parameters())
    criterion = nn.CrossEntropyLoss()
    for inputs, labels in itertools.islice(loader, STEPS):
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        loss.item()


if __name__ == "__main__":
    main()
