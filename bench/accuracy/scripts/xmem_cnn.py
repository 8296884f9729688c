"""Trains a convolution network of torchvision on images of 86 x 86, as xMem's authors did with CIFAR-10.

Random images stand in for the data set. The loop follows the published description: fp32, learning rate
0.001, a step-wise schedule, four iterations and one more.
"""

from __future__ import annotations

import argparse

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset
from torchvision.models.mobilenetv3 import MobileNetV3, _mobilenet_v3_conf

EDGE, ITERATIONS = 86, 4
LAST_CHANNEL = {"mobilenet_v3_small": 1024, "mobilenet_v3_large": 1280}


class Images(Dataset[tuple[torch.Tensor, int]]):
    """As many labelled images as CIFAR-10 has for training."""

    def __init__(self) -> None:
        self.image = torch.rand(3, EDGE, EDGE)

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.image, index % 10


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("model")
    options.add_argument("--batch", type=int, required=True)
    options.add_argument("--optimizer", required=True, choices=["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
    options.add_argument("--zero-grad", default="start", choices=["start", "before-backward", "after-step"])
    return options


def build(options: argparse.Namespace) -> torch.nn.Module:
    """The model: 1000 classes, but 10 of MobileNetV3 and MnasNet, which were made without a builder."""
    if options.model in LAST_CHANNEL:
        layers, _ = _mobilenet_v3_conf(options.model)
        return MobileNetV3(layers, last_channel=LAST_CHANNEL[options.model], num_classes=10)
    if options.model.startswith("mnasnet"):
        return torchvision.models.MNASNet(alpha=1.0, num_classes=10)
    return torchvision.models.get_model(options.model, weights=None)


def example(options: argparse.Namespace) -> dict[str, torch.Tensor]:
    """The input of one step."""
    return {"x": torch.empty(options.batch, 3, EDGE, EDGE)}


def main() -> None:
    """Trains."""
    options = parser().parse_args()
    device = torch.device("cuda")
    model = build(options).to(device)
    loader = DataLoader(Images(), batch_size=options.batch, shuffle=True)
    optimizer = getattr(torch.optim, options.optimizer)(model.parameters(), lr=0.001)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
    criterion = torch.nn.CrossEntropyLoss()
    model.train()
    for index, (inputs, labels) in enumerate(loader):
        if options.zero_grad == "start":
            optimizer.zero_grad()
        inputs, labels = inputs.to(device), labels.to(device)
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        if options.zero_grad == "before-backward":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.max(outputs, 1)
        if options.zero_grad == "after-step":
            optimizer.zero_grad()
        schedule.step()
        print(f"step {index}, learning rate {schedule.get_last_lr()}")
        if index >= ITERATIONS:
            break


if __name__ == "__main__":
    main()
