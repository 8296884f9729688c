"""Trains a small network on made-up images; every switch is one that training scripts commonly have."""

import argparse
import contextlib
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "adagrad", "rmsprop", "adafactor", "lbfgs")


class Images(Dataset):
    def __init__(self, size, count=1024):
        self.size, self.count = size, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.rand(3, self.size, self.size), index % 10


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return F.relu(x + self.body(x))


class Net(nn.Module):
    """A stem, residual blocks with downsampling, and a multilayer perceptron for a head."""

    def __init__(self, width=64, depth=6, hidden=4096, classes=10, checkpointing=None):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Sequential(
            nn.Linear(width * 16, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, classes),
        )  # fmt: skip
        self.checkpointing = checkpointing

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            if self.checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=self.checkpointing == "reentrant")
            else:
                x = block(x)
        return self.head(F.adaptive_avg_pool2d(x, 4).flatten(1))


class Perceptron(nn.Module):
    """Fully connected layers on small images, with layer normalisation."""

    def __init__(self, size=64, hidden=2048, depth=4, classes=10, checkpointing=None):
        super().__init__()
        self.first = nn.Linear(3 * size * size, hidden)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.GELU(), nn.Dropout(0.1))
            for _ in range(depth)
        )
        self.last = nn.Linear(hidden, classes)
        self.checkpointing = checkpointing

    def forward(self, x):
        x = self.first(x.flatten(1))
        for block in self.blocks:
            if self.checkpointing and self.training:
                x = x + checkpoint(block, x, use_reentrant=self.checkpointing == "reentrant")
            else:
                x = x + block(x)
        return self.last(x)


def make_optimizer(args, parameters):
    kind = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}.get(
        args.kind, {}
    )
    if args.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=args.lr, **kind)
    if args.optimizer == "momentum":
        return torch.optim.SGD(parameters, lr=args.lr, momentum=0.9, nesterov=True, weight_decay=1e-4, **kind)
    if args.optimizer == "lbfgs":
        return torch.optim.LBFGS(parameters, lr=args.lr, max_iter=4, history_size=5)
    names = {
        "adam": "Adam",
        "adamw": "AdamW",
        "adagrad": "Adagrad",
        "rmsprop": "RMSprop",
        "adafactor": "Adafactor",
    }
    return getattr(torch.optim, names[args.optimizer])(parameters, lr=args.lr, **kind)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("cnn", "mlp"), default="cnn")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--kind", choices=("default", "foreach", "fused", "loop"), default="default")
    parser.add_argument("--amp", choices=("fp16", "bf16"))
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--checkpointing", choices=("reentrant", "non-reentrant"))
    parser.add_argument("--zero-grad", choices=("start", "before-backward", "end"), default="start")
    parser.add_argument("--keep-grads", action="store_true", help="zero_grad(set_to_none=False)")
    parser.add_argument("--clip", type=float)
    parser.add_argument("--ema", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--pin-memory", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--start-method", choices=("fork", "spawn"))
    parser.add_argument("--memory-queries", action="store_true")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def report_memory(device, where):
    stats = torch.cuda.memory_stats(device)
    free, total = torch.cuda.mem_get_info(device)
    print(
        f"{where}: {torch.cuda.memory_allocated(device) / 2**20:.1f} MiB allocated, "
        f"{torch.cuda.max_memory_allocated(device) / 2**20:.1f} at most, "
        f"{torch.cuda.memory_reserved(device) / 2**20:.1f} reserved, {stats['num_alloc_retries']} retries, "
        f"{100 * (total - free) / total:.1f} % of the card in use"
    )
    torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.empty_cache()


def train_one_epoch(args, model, averaged, optimizer, scaler, scheduler, loader, device):
    model.train()
    autocast = contextlib.nullcontext()
    if args.amp:
        autocast = torch.autocast("cuda", dtype=torch.float16 if args.amp == "fp16" else torch.bfloat16)
    for step, (images, target) in enumerate(loader):
        images = images.to(device, non_blocking=args.pin_memory)
        target = target.to(device, non_blocking=args.pin_memory)
        if args.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        first, last = step % args.accumulate == 0, (step + 1) % args.accumulate == 0
        if args.zero_grad == "start" and first:
            optimizer.zero_grad(set_to_none=not args.keep_grads)

        def forward():
            with autocast:
                return F.cross_entropy(model(images), target) / args.accumulate

        if args.optimizer == "lbfgs":

            def closure():
                optimizer.zero_grad()
                loss = forward()
                loss.backward()
                return loss

            loss = optimizer.step(closure)
        else:
            loss = forward()
            if args.zero_grad == "before-backward" and first:
                optimizer.zero_grad(set_to_none=not args.keep_grads)
            scaler.scale(loss).backward()
            if last:
                if args.clip:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                scaler.step(optimizer)
                scaler.update()
                if args.zero_grad == "end":
                    optimizer.zero_grad(set_to_none=not args.keep_grads)
        if averaged is not None and last:
            averaged.update_parameters(model)
        if step % 5 == 0:
            print(f"step {step}: loss {loss.item():.4f}, lr {scheduler.get_last_lr()[0]:.2e}")
            if args.memory_queries:
                report_memory(device, f"step {step}")
    scheduler.step()


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    right = seen = 0
    for images, target in loader:
        images, target = images.to(device), target.to(device)
        right += (model(images).argmax(1) == target).sum().item()
        seen += len(target)
    return right / seen


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda")
    net = {"cnn": Net, "mlp": Perceptron}[args.model]
    model = net(checkpointing=args.checkpointing).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    averaged = None
    if args.ema:
        decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
        averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=decay)
    print(f"{sum(parameter.numel() for parameter in model.parameters())} parameters")
    options = {
        "batch_size": args.batch_size,
        "num_workers": args.workers,
        "pin_memory": args.pin_memory,
        "multiprocessing_context": args.start_method if args.workers else None,
    }
    train = DataLoader(Images(args.image_size), shuffle=True, drop_last=True, **options)
    test = DataLoader(Images(args.image_size, count=256), **options)
    optimizer = make_optimizer(args, model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp == "fp16")
    best, kept = 0.0, None
    for epoch in range(args.epochs):
        train_one_epoch(args, model, averaged, optimizer, scaler, scheduler, train, device)
        accuracy = evaluate(averaged or model, test, device)
        print(f"epoch {epoch}: accuracy {accuracy:.3f}")
        if accuracy >= best:
            best, kept = (
                accuracy,
                copy.deepcopy({name: value.cpu() for name, value in model.state_dict().items()}),
            )
    torch.save({"model": kept, "optimizer": optimizer.state_dict()}, "plain.pt")


if __name__ == "__main__":
    main()
