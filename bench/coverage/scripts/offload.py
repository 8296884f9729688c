"""Training with parameters or optimizer state in the memory of the host."""

import argparse
import os

import torch
from torch import nn


def network(width: int = 2048) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(width, width), nn.GELU())))


def steps(model, optimizer, x) -> None:
    for step in range(6):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")


def fsdp() -> None:
    """One rank of FSDP with CPUOffload."""
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel

    _one_rank()
    model = FullyShardedDataParallel(
        network(), cpu_offload=CPUOffload(offload_params=True), device_id=torch.cuda.current_device()
    )
    steps(model, torch.optim.AdamW(model.parameters()), torch.randn(64, 2048).cuda())


def fsdp2() -> None:
    """One rank of fully_shard with CPUOffloadPolicy."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    _one_rank()
    model = network()
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, offload_policy=CPUOffloadPolicy())
    fully_shard(model, offload_policy=CPUOffloadPolicy())
    steps(model, torch.optim.AdamW(model.parameters()), torch.randn(64, 2048).cuda())


def hand() -> None:
    """Optimizer state on the CPU by hand: gradients go down, parameters come back."""
    model = network().cuda()
    masters = [p.detach().cpu().clone().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters)
    x = torch.randn(64, 2048).cuda()
    for step in range(6):
        loss = model(x).square().mean()
        loss.backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            master.grad = p.grad.to("cpu")
            p.grad = None
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters(), strict=True):
                p.copy_(master, non_blocking=True)
        print(f"step {step}: loss {loss.item():.4f}")


def layers() -> None:
    """Layers visit the GPU in turn: inference with a model larger than the GPU's memory."""
    model = network()
    x = torch.randn(64, 2048).cuda()
    with torch.inference_mode():
        for layer in model:
            layer.cuda()
            x = layer(x)
            layer.cpu()
    print(x.sum().item())


def activations() -> None:
    """Activations wait in pinned memory of the host (torch.autograd.graph.save_on_cpu)."""
    model = network().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4096, 2048).cuda()
    for step in range(6):
        optimizer.zero_grad()
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")


def accelerate() -> None:
    """accelerate's cpu_offload: weights are sent to the GPU layer by layer."""
    from accelerate import cpu_offload

    model = cpu_offload(network(), execution_device=torch.device("cuda:0"))
    with torch.no_grad():
        for _ in range(3):
            print(model(torch.randn(64, 2048)).sum().item())


def device_map() -> None:
    """A part of the layers on the GPU, the others on the CPU."""
    from accelerate import dispatch_model

    model = network()
    where = {str(i): 0 if i < 8 else "cpu" for i in range(len(model))}
    model = dispatch_model(model, device_map=where, main_device=0)
    with torch.no_grad():
        for _ in range(3):
            print(model(torch.randn(64, 2048)).sum().item())


def paged() -> None:
    """A paged optimizer of bitsandbytes: its state is managed memory."""
    import bitsandbytes

    model = network().cuda()
    steps(model, bitsandbytes.optim.PagedAdamW32bit(model.parameters()), torch.randn(64, 2048).cuda())


def deepspeed() -> None:
    """DeepSpeed ZeRO stage 2, one rank, optimizer on the CPU."""
    import deepspeed as engine

    _one_rank()
    model = network()
    configuration = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 64,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(model.parameters())
    model, _, _, _ = engine.initialize(model=model, optimizer=optimizer, config=configuration)
    x = torch.randn(64, 2048, dtype=torch.bfloat16).cuda()
    for step in range(6):
        loss = model(x).square().mean()
        model.backward(loss)
        model.step()
        print(f"step {step}: loss {loss.item():.4f}")


def _one_rank() -> None:
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1",
                        "LOCAL_RANK": "0"}.items():  # fmt: skip
        os.environ.setdefault(name, value)
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    ways = (fsdp, fsdp2, hand, layers, activations, accelerate, device_map, paged, deepspeed)
    parser.add_argument("way", choices=[way.__name__ for way in ways])
    globals()[parser.parse_args().way]()
