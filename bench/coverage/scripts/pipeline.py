"""Trains a Transformer as a pipeline, one stage on each GPU: pipeline.py gpipe|1f1b|by-hand."""

import os
import sys

import torch
import torch.distributed as dist
from ranks import BATCH, LENGTH, VOCABULARY, WIDTH, Model
from torch import nn

MICROBATCHES = 4


class Stage(nn.Module):
    """The part of the model that one rank has; the first one embeds, the last one has the head."""

    def __init__(self, model: Model, rank: int, ranks: int) -> None:
        super().__init__()
        each = len(model.blocks) // ranks
        self.embedding = model.embedding if rank == 0 else nn.Identity()
        self.blocks = nn.Sequential(*model.blocks[rank * each : (rank + 1) * each])
        self.head = model.head if rank == ranks - 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(x)))


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def by_hand(stage: Stage, rank: int, ranks: int, tokens: torch.Tensor, targets: torch.Tensor) -> None:
    """All micro-batches forward, then all backward."""
    kept = []
    for part, target in zip(tokens.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True):
        x = part
        if rank > 0:
            x = torch.empty(len(part), LENGTH, WIDTH, device=part.device, requires_grad=True)
            dist.recv(x.data, rank - 1)
        y = stage(x)
        if rank < ranks - 1:
            dist.send(y.detach(), rank + 1)
        kept.append((x, y, target))
    for x, y, target in kept:
        if rank < ranks - 1:
            gradient = torch.empty_like(y)
            dist.recv(gradient, rank + 1)
            y.backward(gradient)
        else:
            (loss_of(y, target) / MICROBATCHES).backward()
        if rank > 0:
            dist.send(x.grad, rank - 1)


def main(kind: str) -> None:
    dist.init_process_group("nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    stage = Stage(Model(), rank, ranks).to(device)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-4)
    schedule = None
    if kind != "by-hand":
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

        schedules = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
        schedule = schedules[kind](
            PipelineStage(stage, rank, ranks, device), n_microbatches=MICROBATCHES, loss_fn=loss_of
        )
    for step in range(20):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), device=device)
        optimizer.zero_grad()
        if schedule is None:
            by_hand(stage, rank, ranks, tokens[:, :-1], tokens[:, 1:])
        elif rank == 0:
            schedule.step(tokens[:, :-1].contiguous())
        elif rank == ranks - 1:
            losses = []
            schedule.step(target=tokens[:, 1:].contiguous(), losses=losses)
            print(f"step {step}: loss {torch.stack(losses).mean().item():.3f}", flush=True)
        else:
            schedule.step()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
