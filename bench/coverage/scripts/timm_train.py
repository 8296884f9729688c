"""Trains a model of timm with timm's own parts: loader with prefetching, mixup, optimizer, scheduler, EMA, scaler."""

import argparse
import contextlib
import time

import timm
import torch
import torchvision
from timm.data import Mixup, create_loader, resolve_data_config
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler, accuracy, dispatch_clip_grad


def make_loaders(args, config):
    size = config["input_size"]
    common = {
        "input_size": size, "interpolation": config["interpolation"], "mean": config["mean"], "std": config["std"],
        "num_workers": args.workers, "use_prefetcher": True, "pin_memory": True, "persistent_workers": False,
        "device": torch.device("cuda"),
    }  # fmt: skip
    train = torchvision.datasets.FakeData(20_000, size, args.num_classes)
    val = torchvision.datasets.FakeData(256, size, args.num_classes)
    return (
        create_loader(
            train, batch_size=args.batch_size, is_training=True, re_prob=0.25, re_mode="pixel", color_jitter=0.4,
            auto_augment="rand-m7-mstd0.5-inc1", **common,
        ),
        create_loader(val, batch_size=args.batch_size, is_training=False, crop_pct=config["crop_pct"], **common),
    )  # fmt: skip


def train_one_epoch(
    args, epoch, model, ema, loader, mixup, criterion, optimizer, scheduler, scaler, autocast
):
    model.train()
    losses = AverageMeter()
    updates = epoch * len(loader)
    start = time.time()
    for step, (images, target) in enumerate(loader):
        images, target = mixup(images, target)
        with autocast():
            loss = criterion(model(images), target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler(loss, optimizer, clip_grad=args.clip_grad, parameters=model.parameters())
        else:
            loss.backward()
            dispatch_clip_grad(model.parameters(), value=args.clip_grad)
            optimizer.step()
        updates += 1
        if ema is not None:
            ema.update(model, step=updates)
        losses.update(loss.item(), images.size(0))
        scheduler.step_update(num_updates=updates, metric=losses.avg)
        if step % 10 == 0:
            print(
                f"epoch {epoch} [{step}/{len(loader)}] loss {losses.val:.3f} ({losses.avg:.3f}) {time.time() - start:.1f} s"
            )


@torch.inference_mode()
def validate(model, loader, autocast):
    model.eval()
    top1 = AverageMeter()
    for images, target in loader:
        with autocast():
            output = model(images)
        best, _ = accuracy(output, target, topk=(1, 5))
        torch.cuda.synchronize()
        top1.update(best.item(), images.size(0))
    print(f"validation: acc@1 {top1.avg:.3f}")
    return top1.avg


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--opt", default="adamw")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--amp-dtype", choices=("none", "float16", "bfloat16"), default="bfloat16")
    parser.add_argument("--clip-grad", type=float, default=1.0)
    parser.add_argument("--drop-path", type=float, default=0.1)
    parser.add_argument("--grad-checkpointing", action="store_true")
    parser.add_argument("--model-ema", action="store_true")
    args = parser.parse_args()

    model = timm.create_model(
        args.model, pretrained=False, num_classes=args.num_classes, drop_path_rate=args.drop_path
    )
    if args.grad_checkpointing:
        model.set_grad_checkpointing(enable=True)
    config = resolve_data_config(vars(args), model=model, verbose=True)
    model.to("cuda")
    optimizer = create_optimizer_v2(model, opt=args.opt, lr=1e-3, weight_decay=0.05)
    autocast, scaler = contextlib.nullcontext, None
    if args.amp_dtype != "none":
        dtype = getattr(torch, args.amp_dtype)

        def autocast():
            return torch.autocast("cuda", dtype=dtype)

        scaler = NativeScaler() if dtype is torch.float16 else None
    ema = ModelEmaV3(model, decay=0.9998, use_warmup=True) if args.model_ema else None
    train, val = make_loaders(args, config)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=args.num_classes)
    scheduler, epochs = create_scheduler_v2(
        optimizer,
        sched="cosine",
        num_epochs=args.epochs,
        warmup_epochs=1,
        warmup_lr=1e-6,
        updates_per_epoch=len(train),
    )
    criterion = SoftTargetCrossEntropy().cuda()
    for epoch in range(epochs):
        train_one_epoch(
            args, epoch, model, ema, train, mixup, criterion, optimizer, scheduler, scaler, autocast
        )
        best = validate(ema.module if ema is not None else model, val, autocast)
        scheduler.step(epoch + 1, best)
        torch.save({"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pth.tar")


if __name__ == "__main__":
    main()
