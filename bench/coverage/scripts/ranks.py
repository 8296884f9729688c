"""Trains a small Transformer on several GPUs.

ranks.py ddp|averages|fsdp1|fsdp2|zero|tensor|mesh|dataparallel|spawn|fork
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LAYERS, BATCH, LENGTH, VOCABULARY = 1024, 8, 8, 512, 32000


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, -1, 64)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def wrap(model: nn.Module, strategy: str, device: int) -> nn.Module:
    if strategy in ("ddp", "averages", "zero", "spawn", "fork"):
        return nn.parallel.DistributedDataParallel(model.to(device), device_ids=[device])
    if strategy == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device, use_orig_params=True
        )
    if strategy == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block.to(device))
        return fully_shard(model.to(device))
    if strategy == "tensor":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        model.to(device)
        for block in model.blocks:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return model
    if strategy == "mesh":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cuda", (2, dist.get_world_size() // 2), mesh_dim_names=("data", "tensor"))
        model.to(device)
        for block in model.blocks:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            fully_shard(parallelize_module(block, mesh["tensor"], plan), mesh=mesh["data"])
        return fully_shard(model, mesh=mesh["data"])
    return nn.DataParallel(model.to(device))


def train(rank: int, strategy: str, world_size: int) -> None:
    device = 0
    if strategy in ("spawn", "fork"):
        os.environ.setdefault("MASTER_ADDR", "localhost")
        os.environ.setdefault("MASTER_PORT", "29500")
        dist.init_process_group("nccl", rank=rank, world_size=world_size)
        device = rank
    elif strategy != "dataparallel":
        if "OMPI_COMM_WORLD_RANK" in os.environ:  # started by mpirun
            for ours, theirs in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE"), ("LOCAL_RANK", "LOCAL_RANK")):
                os.environ[ours] = os.environ[f"OMPI_COMM_WORLD_{theirs}"]
        dist.init_process_group("cpu:gloo,cuda:nccl")
        device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    model = wrap(Model(), strategy, device)
    if strategy == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
    else:
        together = False if strategy in ("tensor", "mesh") else None  # parameters of two kinds
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=together)
    averages = None
    if strategy == "averages" and rank == 0:
        averages = torch.optim.swa_utils.AveragedModel(model.module)
    for step in range(20):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), device=device)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if strategy not in ("tensor", "mesh"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if averages is not None:
            averages.update_parameters(model.module)
        if dist.is_initialized():
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            losses = [None] * dist.get_world_size()
            dist.all_gather_object(losses, float(loss))
        if rank == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        gpus = torch.cuda.device_count()
        torch.multiprocessing.spawn(train, args=("spawn", gpus), nprocs=gpus)
    elif sys.argv[1] == "fork":
        gpus = len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
        workers = [
            torch.multiprocessing.get_context("fork").Process(target=train, args=(rank, "fork", gpus))
            for rank in range(gpus)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        sys.exit(max(worker.exitcode for worker in workers))
    else:
        train(int(os.environ.get("RANK", "0")), sys.argv[1], int(os.environ.get("WORLD_SIZE", "1")))
