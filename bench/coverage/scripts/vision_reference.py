"""In the style of torchvision's reference scripts: metric loggers, an evaluation in inference mode, checkpoints."""

import collections
import datetime
import time

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler


class MetricLogger:
    """Mean values, and how long there is to go."""

    def __init__(self):
        self.sums, self.counts = collections.defaultdict(float), collections.Counter()

    def update(self, **values):
        """Adds values to their means."""
        for name, value in values.items():
            self.sums[name] += value
            self.counts[name] += 1

    def log_every(self, iterable, frequency, header):
        """The batches of `iterable`, with a line printed now and then."""
        start = time.time()
        for index, thing in enumerate(iterable):
            yield thing
            if index % frequency == 0:
                left = datetime.timedelta(seconds=int(time.time() - start) * (len(iterable) - index))
                means = {name: self.sums[name] / self.counts[name] for name in self.sums}
                memory = torch.cuda.max_memory_allocated() / 2**20
                print(f"{header} [{index}/{len(iterable)}] eta {left} {means} max mem {memory:.0f}")
        print(f"{header} {(time.time() - start) / len(iterable):.4f} s / it")


def accuracy(output, target, topk=(1,)):
    """Share of right answers among the first k, for each k."""
    with torch.inference_mode():
        _, predicted = output.topk(max(topk), 1, True, True)
        correct = predicted.t().eq(target[None])
        return [correct[:k].flatten().sum(dtype=torch.float32) * (100.0 / target.size(0)) for k in topk]


def train_one_epoch(model, criterion, optimizer, loader, epoch, scaler):
    """One epoch under automatic mixed precision."""
    model.train()
    logger = MetricLogger()
    for image, target in logger.log_every(loader, 10, f"Epoch: [{epoch}]"):
        image, target = image.cuda(non_blocking=True), target.cuda(non_blocking=True)
        with torch.amp.autocast("cuda"):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        logger.update(loss=loss.item(), acc1=acc1.item(), acc5=acc5.item())


def evaluate(model, criterion, loader):
    """Accuracy on the test set."""
    model.eval()
    logger = MetricLogger()
    processed = 0
    with torch.inference_mode():
        for image, target in logger.log_every(loader, 10, "Test:"):
            image, target = image.cuda(non_blocking=True), target.cuda(non_blocking=True)
            output = model(image)
            loss = criterion(output, target)
            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            processed += len(image)
            logger.update(loss=loss.item(), acc1=acc1.item(), acc5=acc5.item())
    print("processed", processed)


def main():
    """Trains a ResNet-18 for 90 epochs."""
    data = torchvision.datasets.FakeData(2560, (3, 176, 176), 1000, torchvision.transforms.ToTensor())
    training = DataLoader(data, 32, sampler=RandomSampler(data), num_workers=2, pin_memory=True)
    testing = DataLoader(data, 256, sampler=SequentialSampler(data), num_workers=2, pin_memory=True)
    model = torchvision.models.resnet18().cuda()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(90):
        train_one_epoch(model, criterion, optimizer, training, epoch, scaler)
        scheduler.step()
        evaluate(model, criterion, testing)
        checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(checkpoint, f"model_{epoch}.pth")


if __name__ == "__main__":
    main()
