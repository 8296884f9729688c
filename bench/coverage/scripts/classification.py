"""Trains a classifier of torchvision on made-up images, as torchvision's reference script does on ImageNet."""

import argparse
import time

import torch
import torch.nn as nn
import torchvision
from torchvision import transforms
from torchvision.models import GoogLeNetOutputs, InceptionOutputs


def make_loaders(args):
    """Random crops for training, centre crops with a larger batch for validation."""
    normalise = transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    augment = transforms.Compose([
        transforms.RandomResizedCrop(args.image_size), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalise,
    ])  # fmt: skip
    crop = transforms.Compose([transforms.CenterCrop(args.image_size), transforms.ToTensor(), normalise])
    shape = (3, args.image_size, args.image_size)
    train = torchvision.datasets.FakeData(100_000, shape, args.classes, augment)
    val = torchvision.datasets.FakeData(1000, shape, args.classes, crop)
    return (
        torch.utils.data.DataLoader(
            train, args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=True
        ),
        torch.utils.data.DataLoader(val, args.val_batch_size, num_workers=args.workers, pin_memory=True),
    )


def accuracy(output, target, topk=(1, 5)):
    with torch.no_grad():
        _, found = output.topk(max(topk), dim=1)
        right = found.t().eq(target[None])
        return [right[:k].flatten().sum().item() * 100.0 / target.size(0) for k in topk]


def train_one_epoch(args, model, criterion, optimizer, scaler, loader, epoch):
    model.train()
    for step, (images, target) in enumerate(loader):
        start = time.time()
        images, target = images.cuda(non_blocking=True), target.cuda(non_blocking=True)
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            output = model(images)
            if isinstance(output, (GoogLeNetOutputs, InceptionOutputs)):
                auxiliary = [head for head in output[1:] if head is not None]
                loss = criterion(output.logits, target) + 0.3 * sum(
                    criterion(head, target) for head in auxiliary
                )
                output = output.logits
            else:
                loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        top1, top5 = accuracy(output, target)
        if step % args.print_freq == 0:
            rate = args.batch_size / max(time.time() - start, 1e-9)
            print(
                f"epoch {epoch} step {step} loss {loss.item():.4f} acc@1 {top1:.2f} acc@5 {top5:.2f} {rate:.0f} img/s"
            )


def evaluate(model, criterion, loader):
    model.eval()
    top1 = losses = count = 0.0
    with torch.inference_mode():
        for images, target in loader:
            images, target = images.cuda(non_blocking=True), target.cuda(non_blocking=True)
            output = model(images)
            losses += criterion(output, target).item()
            top1 += accuracy(output, target)[0] * len(target)
            count += len(target)
    print(f"validation: loss {losses / len(loader):.4f} acc@1 {top1 / count:.2f}")
    return top1 / count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--val-batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--print-freq", type=int, default=10)
    args = parser.parse_args()

    torch.backends.cudnn.benchmark = True
    model = torchvision.models.get_model(args.arch, weights=None, num_classes=args.classes).cuda()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    scaler = torch.amp.GradScaler("cuda") if args.amp else None
    train, val = make_loaders(args)
    best = 0.0
    for epoch in range(args.epochs):
        train_one_epoch(args, model, criterion, optimizer, scaler, train, epoch)
        scheduler.step()
        best = max(best, evaluate(model, criterion, val))
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
            "checkpoint.pth",
        )
    print(f"best acc@1 {best:.2f}")


if __name__ == "__main__":
    main()
