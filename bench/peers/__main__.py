"""gpumem beside what a user without a GPU would do instead: seconds, host memory, and how far off.

    python -m bench.peers [--only MODEL] [--runs 1] [--json FILE]

The same models and steps, on this machine, in three ways:

- `torch.profiler`: two steps on the CPU with `profile_memory=True`. The profiler's allocations are replayed
  by the simulator of the CUDA allocator, as xMem does it with one of its own.
- `MemTracker`: two steps on fake tensors under `torch.distributed._tools.mem_tracker`. It adds up tensors,
  and so can only tell what is allocated, not what is reserved.
- `gpumem estimate --steps 2`.

The truth is what PyTorch's CUDA allocator counts on the fake device in six steps of the script, not traced
and not cut short: the allocator of a GPU, but not a measurement on one. gpumem's trace uses the same device,
so its row shows that neither tracing nor cutting nor the replay changes a byte; what kernels ask for beside
tensors is not judged here. Seconds and host memory are of the whole command, imports included, with one
thread for operators on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from bench import fake_device, processes
from estimator.allocator import Action, History, replay
from settings import GIB, MIB

SCRIPTS = Path(__file__).parent / "scripts"
RESULTS = Path(__file__).parent.parent / "results" / "peers.json"
STEPS, STEPS_OF_TRUTH, TIMEOUT_S = 2, 6, 600
MODELS = {
    "mobilenet_v2": "MobileNetV2, 16 x 224x224",
    "resnet50": "ResNet-50, 8 x 224x224",
    "bert": "BERT base, 4 x 128",
    "gpt2": "GPT-2 124M, 2 x 256",
}


@dataclass(frozen=True)
class Peaks:
    """Bytes; None for what a way cannot tell."""

    allocated: int
    reserved: int | None


@dataclass(frozen=True)
class Row:
    """One way to predict one model; the medians of the runs."""

    model: str
    way: str
    wall_s: float
    cpu_s: float
    resident_bytes: int
    predicted: Peaks
    truth: Peaks

    @property
    def allocated_off(self) -> float:
        """Signed, as a part of the truth."""
        return self.predicted.allocated / self.truth.allocated - 1

    @property
    def reserved_off(self) -> float:
        """The same of what is reserved; a way that cannot tell it is held to what it can tell."""
        said = self.predicted.reserved
        return (self.predicted.allocated if said is None else said) / (self.truth.reserved or 1) - 1


def true_peaks(model: str) -> Peaks:
    """What PyTorch counts itself."""
    with tempfile.TemporaryDirectory(prefix="gpumem-bench-") as folder:
        used = processes.run(
            [sys.executable, SCRIPTS / "train.py", model, "--steps", STEPS_OF_TRUTH],
            environment=fake_device.environment(Path(folder)),
            timeout_s=TIMEOUT_S,
        )
    allocated, reserved = used.output.split()
    return Peaks(int(allocated), int(reserved))


def profiled(model: str) -> tuple[processes.Used, Peaks]:
    """By the memory events of a CPU run."""
    used = processes.run([sys.executable, SCRIPTS / "profiled.py", model, STEPS], timeout_s=TIMEOUT_S)
    replayed = replay(_history(json.loads(used.output.splitlines()[-1])))
    return used, Peaks(replayed.allocated_peak, replayed.reserved_peak)


def _history(changes: list[tuple[int, int]]) -> History:
    """The profiler's (address, bytes), which are negative where memory is given back."""
    live: set[int] = set()
    events: list[tuple[int, int, int]] = []
    for address, size in changes:
        if size > 0 and address not in live:
            live.add(address)
            events.append((Action.ALLOC, address, size))
        elif size < 0 and address in live:  # what was there before the profiler is freed unseen
            live.remove(address)
            events += [(action, address, -size) for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED)]
    return History(*([int(event[k]) for event in events] for k in range(3)), [0] * len(events))


def tracked(model: str) -> tuple[processes.Used, Peaks]:
    """By fake tensors."""
    used = processes.run([sys.executable, SCRIPTS / "tracked.py", model, STEPS], timeout_s=TIMEOUT_S)
    return used, Peaks(int(used.output.split()[-1]), None)


def estimated(model: str) -> tuple[processes.Used, Peaks]:
    """By gpumem."""
    used = processes.run(
        [
            sys.executable, "-m", "estimator", "estimate", "--no-cache", "--json", "--gpu", fake_device.GPU,
            "--steps", STEPS, "--", sys.executable, SCRIPTS / "train.py", model, "--steps", STEPS_OF_TRUTH,
        ],
        timeout_s=TIMEOUT_S,
    )  # fmt: skip
    found = json.loads(used.output)
    return used, Peaks(found["allocated_peak_bytes"], found["reserved_peak_bytes"])


WAYS: dict[str, Callable[[str], tuple[processes.Used, Peaks]]] = {
    "torch.profiler": profiled,
    "MemTracker": tracked,
    "gpumem": estimated,
}


def measure(model: str, way: str, truth: Peaks, runs: int) -> Row:
    """Runs one way so often; what it predicts is that of the last run."""
    results = [WAYS[way](model) for _ in range(runs)]
    wall, cpu, resident = (
        statistics.median(getattr(used, name) for used, _ in results)
        for name in ("wall_s", "cpu_s", "resident_bytes")
    )
    return Row(model, way, wall, cpu, int(resident), results[-1][1], truth)


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| model | way | clock | processor | host memory | predicted | off the allocated peak "
        "| off the reserved peak |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        said = row.predicted.reserved or row.predicted.allocated
        lines.append(
            f"| {MODELS[row.model]} | {row.way} | {row.wall_s:.1f} s | {row.cpu_s:.1f} s "
            f"| {row.resident_bytes / GIB:.2f} GiB | {said / MIB:,.0f} MiB "
            f"| {row.allocated_off:+.2%} | {row.reserved_off:+.2%} |"
        )
    return "\n".join(lines)


def write(rows: list[Row], runs: int, file: Path) -> None:
    """The rows as JSON, with what they were measured with."""
    file.parent.mkdir(exist_ok=True)
    versions = {name: metadata.version(name) for name in ("torch", "torchvision", "transformers")}
    machine = {"python": platform.python_version(), "machine": platform.machine(), **versions}
    found = {"machine": machine, "runs": runs, "rows": [asdict(row) for row in rows]}
    file.write_text(json.dumps(found, indent=1) + "\n")


def main() -> int:
    """Prints the table and writes the results; a way that fails is told and left out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(MODELS), help="one model")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    rows: list[Row] = []
    failed = 0
    for model in [options.only] if options.only else MODELS:
        truth = true_peaks(model)
        for way in WAYS:
            try:
                rows.append(measure(model, way, truth, options.runs))
                write(rows, options.runs, options.json)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"{model}, {way}: {error}\n{(error.stderr or '')[-2000:]}", file=sys.stderr)
    print(table(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
