"""Trains a model of timm on random images of its own size, in the manner of timm's `train.py`.

fp32, SGD with momentum, cross-entropy with label smoothing, cudnn.benchmark, an evaluation after training.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import timm
import timm.loss
import timm.optim
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


def batches(options: argparse.Namespace, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Random images, each batch sent to the GPU and made floating-point there while the one before is used.

    As timm's loader does, on a stream of its own for each pass over the data.
    """
    images = torch.zeros(options.batch, *_size(options.model), dtype=torch.uint8)
    classes = torch.zeros(options.batch, dtype=torch.long)
    stream = torch.cuda.Stream(device)
    ready: tuple[torch.Tensor, torch.Tensor] | None = None
    for _ in range(options.steps):
        with torch.cuda.stream(stream):
            inputs = images.to(device, non_blocking=True)
            labels = classes.to(device, non_blocking=True)
            inputs = inputs.to(torch.float32).sub_(116.0).div_(58.0)
        if ready is not None:
            yield ready
        torch.cuda.current_stream(device).wait_stream(stream)
        ready = inputs, labels
    if ready is not None:
        yield ready


def main() -> None:
    """Trains and evaluates."""
    options = parser().parse_args()
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    model = build(options).to(device)
    optimizer = timm.optim.create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9, weight_decay=2e-5)
    criterion = timm.loss.LabelSmoothingCrossEntropy(smoothing=0.1).to(device)
    model.train()
    for inputs, labels in batches(options, device):
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for inputs, labels in batches(options, device):
            outputs = model(inputs)
            loss = torch.nn.functional.cross_entropy(outputs, labels)


if __name__ == "__main__":
    main()
