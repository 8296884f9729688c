"""Trains a detector of torchvision on made-up scenes, as torchvision's reference script does on COCO."""

import argparse
import math
import sys

import torch
import torchvision
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    """Images of different sizes with one to eight rectangles; masks and key points for those who want them."""

    def __init__(self, count, classes):
        self.count, self.classes = count, classes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        chance = torch.Generator().manual_seed(index)
        height, width = (480, 640) if index % 2 else (427, 640)
        number = int(torch.randint(1, 9, (), generator=chance))
        corner = torch.rand(number, 2, generator=chance) * torch.tensor([width - 200, height - 200])
        extent = 40 + torch.rand(number, 2, generator=chance) * 150
        boxes = torch.cat([corner, corner + extent], dim=1)
        masks = torch.zeros(number, height, width, dtype=torch.uint8)
        for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist()):
            mask[top:bottom, left:right] = 1
        points = corner[:, None] + extent[:, None] * torch.rand(number, 17, 2, generator=chance)
        target = {
            "boxes": boxes,
            "labels": torch.randint(1, self.classes, (number,), generator=chance),
            "masks": masks,
            "keypoints": torch.cat([points, torch.ones(number, 17, 1)], dim=2),
            "image_id": index,
        }
        return torch.rand(3, height, width), target


def collate(batch):
    return tuple(zip(*batch))


def to_gpu(images, targets):
    images = [image.cuda() for image in images]
    return images, [
        {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets
    ]


def train_one_epoch(model, optimizer, loader, epoch, scaler):
    model.train()
    warmup = None
    if epoch == 0:
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001, total_iters=len(loader) - 1)
    for step, (images, targets) in enumerate(loader):
        images, targets = to_gpu(images, targets)
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            losses = model(images, targets)
            loss = sum(losses.values())
        value = loss.item()
        if not math.isfinite(value):
            print(f"loss is {value}, stopping training", {name: part.item() for name, part in losses.items()})
            sys.exit(1)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        if warmup is not None:
            warmup.step()
        print(f"epoch {epoch} step {step}: loss {value:.4f} lr {optimizer.param_groups[0]['lr']:.6f}")


@torch.inference_mode()
def evaluate(model, loader):
    model.eval()
    found = 0
    for images, targets in loader:
        images, _ = to_gpu(images, targets)
        torch.cuda.synchronize()
        outputs = [{k: v.cpu() for k, v in output.items()} for output in model(images)]
        found += sum(len(output["boxes"]) for output in outputs)
    print(f"{found} boxes found")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="fasterrcnn_resnet50_fpn")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--amp", action="store_true")
    args = parser.parse_args()
    classes = 2 if args.arch.startswith("keypoint") else 91
    model = torchvision.models.get_model(
        args.arch, weights=None, weights_backbone=None, num_classes=classes
    ).cuda()
    train = DataLoader(Scenes(400, classes), args.batch_size, shuffle=True, collate_fn=collate)
    test = DataLoader(Scenes(20, classes), 1, collate_fn=collate)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[16, 22], gamma=0.1)
    scaler = torch.amp.GradScaler("cuda") if args.amp else None
    for epoch in range(args.epochs):
        train_one_epoch(model, optimizer, train, epoch, scaler)
        scheduler.step()
        evaluate(model, test)
        torch.save(model.state_dict(), "detector.pth")


if __name__ == "__main__":
    main()
