"""One rank of many, traced alone with the real torch: what it must hold, by what the others hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from estimator.tracer.ranks import Alone

ROOT = Path(__file__).parents[3]
TRACER = ROOT / "estimator" / "tracer"
LIBRARY = ROOT / "estimator" / "fake_cuda" / "lib" / "libgpumem_cuda.so"
GPU = {
    "name": "NVIDIA A100 80GB PCIe",
    "memory_bytes": 80 * 2**30,
    "context_bytes": 2**29,
    "compute_capability": [8, 0],
    "sm_count": 108,
}
MIB = 1024**2
WIDTH, LAYERS, RANKS = 1024, 8, 4
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH) * 4  # bytes
TRAINING = f"""
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
model = torch.nn.Sequential(*(torch.nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS}))).cuda()
WRAP
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10):
    loss = model(torch.randn(8, {WIDTH}, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sizes = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, rank)
    total = torch.ones(1, dtype=torch.int64).cuda()
    dist.all_reduce(total)
    dist.barrier()
print(rank, sizes, total.item(), flush=True)
dist.destroy_process_group()
"""
DDP = "model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])"
FSDP = "from torch.distributed.fsdp import fully_shard; [fully_shard(m) for m in model]; fully_shard(model)"


FORK = """
import os, multiprocessing
def run(rank):
    os.environ |= dict(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="4", MASTER_ADDR="x", MASTER_PORT="1")
    train()
def train():
    BODY
import torch
workers = [multiprocessing.get_context("fork").Process(target=run, args=(rank,)) for rank in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
"""
TORCHRUN = ("-m", "torch.distributed.run", f"--nproc_per_node={RANKS}")


def launch(
    folder: Path,
    program: str,
    *,
    middle: bool = False,
    launcher: tuple[str, ...] = TORCHRUN,
    **environment: str,
) -> list[dict]:
    """The traces that the program leaves, by default of `torchrun --nproc_per_node=4`."""
    out = folder / "out"
    out.mkdir(parents=True)
    settings = {
        "library": str(LIBRARY),
        "devices": [GPU | {"index": index, "uuid": f"GPU-{index}"} for index in range(RANKS)],
        "trace": {"out_dir": str(out), "steps": 3, "max_events": 1_000_000, "middle": middle},
    }
    (folder / "tracer.json").write_text(json.dumps(settings))
    script = folder / "train.py"
    script.write_text(program)
    environment |= {"PYTHONPATH": str(TRACER / "inject"), "GPUMEM_TRACER": str(folder / "tracer.json")}
    command = [sys.executable, *launcher, script]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=200, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(path.read_text()) for path in out.iterdir()]


def state_bytes(trace: dict) -> int:
    """What parameters, gradients and the optimizer's state hold when the run ends."""
    live: dict[int, int] = {}
    events = trace["events"]
    for code, address, size in zip(events["action"], events["address"], events["size"], strict=True):
        if trace["actions"][code] == "alloc":
            live[address] = size
        elif trace["actions"][code] == "free_completed":
            live.pop(address, None)
    return sum(live.values())


def test_ddp_holds_all_parameters_and_buckets_of_gradients(tmp_path: Path) -> None:
    program = TRAINING.replace("WRAP", DDP).replace("range(10)", "range(2)")  # comes to its end
    (trace,) = launch(tmp_path, program, middle=True)
    assert trace["end"] == "script"
    assert (trace["rank"], trace["world_size"], trace["device"]) == (2, RANKS, 2)
    assert trace["groups"] == [{"backend": "nccl", "ranks": RANKS}]
    # parameters, gradients, two moments, and the buckets, which are another copy of the gradients
    assert state_bytes(trace) == pytest.approx(5 * PARAMETERS, rel=0.3)
    assert state_bytes(trace) > 5 * PARAMETERS


def test_fsdp_holds_its_share_of_everything(tmp_path: Path) -> None:
    (trace,) = launch(tmp_path, TRAINING.replace("WRAP", FSDP))
    assert (trace["rank"], trace["steps"], trace["end"]) == (0, 3, "steps")
    shares = 4 * PARAMETERS // RANKS
    assert shares < state_bytes(trace) < shares + 2 * PARAMETERS // LAYERS + 40 * MIB
    assert trace["peaks"]["allocated"] < 4 * PARAMETERS


@pytest.mark.parametrize("wrap", [DDP, FSDP], ids=["ddp", "fsdp"])
def test_the_same_history_with_another_number_of_threads_and_cores(tmp_path: Path, wrap: str) -> None:
    """Also when the watchdog thread, which frees what collectives hold, comes at other times."""
    program = TRAINING.replace("WRAP", wrap)
    slow = program.replace(
        "    loss.backward()", "    import time; time.sleep(0.3); loss.backward(); time.sleep(0.3)"
    )
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    (first,) = launch(tmp_path / "first", program, launcher=(), **rank)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # the program inherits it
    try:
        (second,) = launch(tmp_path / "second", slow, launcher=(), OMP_NUM_THREADS="64", **rank)
    finally:
        os.sched_setaffinity(0, cores)
    assert changes(second) == changes(first)
    assert second["peaks"] == first["peaks"]


def changes(trace: dict) -> list[tuple[str, int]]:
    """What the allocator did, in order."""
    events = trace["events"]
    return [
        (trace["actions"][code], size) for code, size in zip(events["action"], events["size"], strict=True)
    ]


def test_ranks_that_a_process_forks_by_hand(tmp_path: Path) -> None:
    body = TRAINING.replace("WRAP", DDP).strip().replace("\n", "\n    ")
    traces = launch(tmp_path, FORK.replace("BODY", body), middle=True, launcher=())
    (rank,) = [trace for trace in traces if trace["events"]]
    assert (rank["rank"], rank["world_size"], rank["device"], rank["steps"]) == (2, RANKS, 2, 3)


@pytest.mark.parametrize(("middle", "wanted"), [(False, 0), (True, 2)])
def test_only_the_wanted_rank_of_a_launcher_is_run(middle: bool, wanted: int) -> None:
    alone = Alone(middle)
    started = [rank for rank in range(4) if not alone.is_other_rank({"RANK": str(rank), "WORLD_SIZE": "4"})]
    assert started == [wanted]
    assert not alone.is_other_rank({"RANK": "3"})
    assert not alone.is_other_rank({"RANK": "x", "WORLD_SIZE": "4"})
