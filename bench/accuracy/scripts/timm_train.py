"""Trains a model of timm on random images of its own size, in the manner of timm's `train.py`.

fp32, SGD with momentum, cross-entropy with label smoothing, cudnn.benchmark.
"""

from __future__ import annotations

import argparse

import timm
import torch

STEPS = 3


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("model")
    options.add_argument("--batch", type=int, required=True)
    options.add_argument("--steps", type=int, default=STEPS)
    return options


def build(options: argparse.Namespace) -> torch.nn.Module:
    """The model with random weights."""
    model: torch.nn.Module = timm.create_model(options.model, pretrained=False)
    return model


def example(options: argparse.Namespace) -> dict[str, torch.Tensor]:
    """The input of one step."""
    return {"x": torch.empty(options.batch, *_size(options.model))}


def _size(name: str) -> tuple[int, int, int]:
    """Channels, height and width that the model was made for."""
    entry = timm.models.get_pretrained_cfg(name)
    return entry.input_size if entry else (3, 224, 224)


def main() -> None:
    """Trains."""
    options = parser().parse_args()
    train(options, build(options))


def train(options: argparse.Namespace, model: torch.nn.Module) -> None:
    """Some steps with random data."""
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    model.to(device)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=2e-5)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    for _ in range(options.steps):
        inputs = torch.rand(options.batch, *_size(options.model)).to(device)
        labels = torch.randint(0, 1000, (options.batch,)).to(device)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
