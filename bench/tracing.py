"""What tracing costs: above the dispatch of the same steps, and for the writing of the history.

    python -m bench.tracing [--steps 20] [--runs 3] [--json]

Both run on the fake CUDA device; the steps are those of a GPT-2 of 12 layers written in plain PyTorch. The
goals: a step takes at most twice as long with the tracer as without, and a history of 100,000 events is
collected and written in under 2 s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import fake_device

EVENTS, DEPTH = 100_000, 40
GOAL_S, GOAL_RATIO = 2.0, 2.0

STEPS = """
import sys, time, torch
from torch import nn
count = int(sys.argv[1])
layers = [nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True) for _ in range(12)]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.empty(8, 1024, 768, device="cuda")
spent = []
for step in range(count):
    begin = time.perf_counter(), time.process_time()
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    spent.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    if step == count - 2:
        print(*(sorted(times)[len(spent) // 2] for times in zip(*spent)), flush=True)
"""
HISTORY = f"""
import time, torch
def allocate(depth):
    return allocate(depth - 1) if depth else torch.empty(1 << 12, device="cuda")
for _ in range({EVENTS // 3 + 1}):
    allocate({DEPTH})
print(time.time(), time.process_time(), flush=True)
"""  # an allocation is three events: taken, given back, free


@dataclass(frozen=True)
class Times:
    """Seconds on the clock and of the processor, all threads together."""

    wall: float
    cpu: float


def run(program: str, steps: int, out: Path, tracing: bool) -> tuple[Times, Times]:
    """Runs a program on the fake device: the two numbers it printed, and when it ended by the same clocks."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(steps)],
        stdout=subprocess.PIPE,
        text=True,
        env=fake_device.environment(out, steps if tracing else None),
    )
    assert process.stdout is not None
    wall, cpu = process.stdout.readline().split()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit("the program failed")
    return Times(float(wall), float(cpu)), Times(time.time(), used.ru_utime + used.ru_stime)


def step(steps: int, tracing: bool) -> Times:
    """How long a step takes, in the median."""
    with tempfile.TemporaryDirectory(prefix="gpumem-bench-") as folder:
        return run(STEPS, steps, Path(folder), tracing)[0]


def history() -> tuple[Times, int]:
    """How long it took from the program's end to the end of the process, and how many events were written."""
    with tempfile.TemporaryDirectory(prefix="gpumem-bench-") as folder:
        begin, end = run(HISTORY, 3, Path(folder), tracing=True)
        (file,) = Path(folder).glob("trace-*.json")
        events = len(json.loads(file.read_text())["events"]["action"])
    return Times(end.wall - begin.wall, end.cpu - begin.cpu), events


def median(times: list[Times]) -> Times:
    """Of each clock."""
    return Times(statistics.median(t.wall for t in times), statistics.median(t.cpu for t in times))


def main() -> int:
    """Runs with and without the tracer in turn, so that a busy moment hits both alike."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    plain, traced, written, events = [], [], [], 0
    for _ in range(options.runs):
        plain.append(step(options.steps, tracing=False))
        traced.append(step(options.steps, tracing=True))
        times, events = history()
        written.append(times)
    ratio = median(traced).cpu / median(plain).cpu
    result = {
        "step_s": [asdict(times) for times in plain],
        "traced_step_s": [asdict(times) for times in traced],
        "ratio": ratio,
        "events": events,
        "history_s": [asdict(times) for times in written],
        "goals_met": ratio <= GOAL_RATIO and median(written).cpu <= GOAL_S,
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{'':24}{'processor':>12}{'clock':>12}")
        for name, times in (("a step", plain), ("a traced step", traced)):
            print(f"{name:24}{median(times).cpu * 1e3:9.1f} ms{median(times).wall * 1e3:9.1f} ms")
        print(f"{f'{events} events written':24}{median(written).cpu:10.2f} s{median(written).wall:10.2f} s")
        print(f"ratio of the steps: {ratio:.2f} (goal {GOAL_RATIO}); goal of the writing: {GOAL_S} s")
    return 0 if result["goals_met"] else 1


if __name__ == "__main__":
    sys.exit(main())
