"""Trains a segmentation model: one of torchvision's, or a U-Net; the metric is the mean IoU."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torch.utils.data import DataLoader, Dataset

IGNORED = 255


class UNet(nn.Module):
    """Contracting and expanding path with skip connections (Ronneberger et al., 2015), padded convolutions."""

    def __init__(self, classes, width=64, depth=4):
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(self.double(a, b) for a, b in zip([3, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths, widths[1:]))
        self.merge = nn.ModuleList(self.double(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def double(inputs, outputs):
        layers = []
        for channels in (inputs, outputs):
            layers += [
                nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
        return nn.Sequential(*layers)

    def forward(self, x):
        skips = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(reversed(self.up), reversed(self.merge)):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return {"out": self.head(x)}


class Scenes(Dataset):
    def __init__(self, count, size, classes):
        self.count, self.size, self.classes = count, size, classes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        target = torch.randint(self.classes, (self.size, self.size))
        target[:4] = IGNORED
        return torch.rand(3, self.size, self.size), target


class ConfusionMatrix:
    """Counts of (true class, found class) over a data set, kept on the GPU."""

    def __init__(self, classes):
        self.classes, self.counts = classes, torch.zeros(classes, classes, dtype=torch.int64, device="cuda")

    def update(self, target, found):
        valid = target < self.classes
        pairs = self.classes * target[valid] + found[valid]
        self.counts += torch.bincount(pairs, minlength=self.classes**2).reshape(self.classes, self.classes)

    def mean_iou(self):
        counts = self.counts.float()
        hits = counts.diag()
        return (hits / (counts.sum(0) + counts.sum(1) - hits)).mean().item()


def criterion(outputs, target):
    losses = {name: F.cross_entropy(output, target, ignore_index=IGNORED) for name, output in outputs.items()}
    return losses["out"] + 0.5 * losses["aux"] if "aux" in losses else losses["out"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="unet")
    parser.add_argument("--classes", type=int, default=21)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--image-size", type=int, default=320)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--amp", action="store_true")
    args = parser.parse_args()
    if args.arch == "unet":
        model = UNet(args.classes).cuda()
    else:
        made = {"weights": None, "weights_backbone": None, "num_classes": args.classes}
        if not args.arch.startswith("lraspp"):
            made["aux_loss"] = True
        model = torchvision.models.get_model(args.arch, **made).cuda()
    train = DataLoader(
        Scenes(200, args.image_size, args.classes), args.batch_size, shuffle=True, drop_last=True
    )
    test = DataLoader(Scenes(8, 2 * args.image_size, args.classes), 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    total = args.epochs * len(train)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=total, power=0.9)
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
    for epoch in range(args.epochs):
        model.train()
        for step, (images, target) in enumerate(train):
            with torch.amp.autocast("cuda", enabled=args.amp):
                loss = criterion(model(images.cuda()), target.cuda())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            print(f"epoch {epoch} step {step}: loss {loss.item():.4f}")
        model.eval()
        matrix = ConfusionMatrix(args.classes)
        with torch.inference_mode():
            for images, target in test:
                output = model(images.cuda())["out"]
                matrix.update(target.cuda().flatten(), output.argmax(1).flatten())
        print(f"epoch {epoch}: mean IoU {matrix.mean_iou():.3f}")
        torch.save(model.state_dict(), "segmentation.pth")


if __name__ == "__main__":
    main()
