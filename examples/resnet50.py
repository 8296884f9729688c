"""Trains ResNet-50 with SGD and mixed precision on made-up images."""

import argparse

import torch
import torchvision


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    device = torch.device("cuda")
    model = torchvision.models.resnet50(weights=None).to(device)
    model.train()
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler()

    images = torch.randn(args.batch_size, 3, 224, 224)
    labels = torch.randint(0, 1000, (args.batch_size,))
    for step in range(args.steps):
        batch, target = images.to(device), labels.to(device)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(batch), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 10 == 0:
            print(f"step {step:4d}  loss {loss.item():.3f}", flush=True)
    print(f"peak reserved: {torch.cuda.max_memory_reserved() / 1024**2:.0f} MiB")


if __name__ == "__main__":
    main()
