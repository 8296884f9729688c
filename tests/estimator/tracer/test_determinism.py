"""What a program is traced to need does not hang on the machine it is traced on, nor on chance."""

import json
import os

from estimator import catalog, trace
from estimator.estimate import estimate
from settings import Estimate as Settings

# data loading workers, the thread of autograd, other threads, and as many of each as there are processors
PROGRAM = """
import concurrent.futures, os, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
if "CPUS" in os.environ:
    os.cpu_count = lambda: int(os.environ["CPUS"])
torch.set_num_threads(os.cpu_count())
workers = min(2, os.cpu_count() // 2)
loader = DataLoader(
    TensorDataset(torch.randn(256, 3, 32, 32)), batch_size=16, shuffle=True, num_workers=workers, pin_memory=True
)
model = nn.Sequential(
    nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(64, 1000), nn.TransformerEncoderLayer(1000, 8, 2000),
).cuda()
optimizer = torch.optim.AdamW(model.parameters())
other = torch.cuda.Stream()
def on_host(batch):
    return [part.square().sum() for part in batch.split(4)]
for (x,) in loader:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        sums = pool.submit(on_host, x)
        y = model(x.cuda(non_blocking=True))
    with torch.cuda.stream(other):
        kept = torch.ones(1 << 20, device="cuda")
    kept.record_stream(torch.cuda.current_stream())
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        y.square().mean().backward()
    del kept
    optimizer.step()
"""


def needs(traced, **environment):
    """The history by which segments were taken, what PyTorch counted, and the estimate's bytes."""
    done, written = traced(PROGRAM, **environment)
    assert done.returncode == 0, done.stderr
    assert written["steps"] == 3
    found = trace.parse(json.dumps(written).encode(), "trace")
    estimated = estimate([found], catalog.load().find("a100-80gb"), Settings())
    segments = [
        (written["actions"][action], size)
        for action, size in zip(written["events"]["action"], written["events"]["size"], strict=True)
        if written["actions"][action].startswith("segment")
    ]
    allocations = sum(written["actions"][action] == "alloc" for action in written["events"]["action"])
    return (
        written["peaks"],
        segments,
        allocations,
        estimated.reserved_peak_bytes,
        estimated.allocated_peak_bytes,
        dict(estimated.by_owner),
    )


def test_the_same_bytes_with_64_processors_and_with_one_core(traced):
    many = needs(traced, CPUS="64", OMP_NUM_THREADS="64")
    assert many[1]
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # the program inherits it
    try:
        assert needs(traced, CPUS="2", OMP_NUM_THREADS="1") == many
    finally:
        os.sched_setaffinity(0, cores)
