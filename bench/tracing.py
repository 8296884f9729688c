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
from pathlib import Path

from estimator import catalog

ROOT = Path(__file__).parent.parent / "estimator"
INJECT = ROOT / "tracer" / "inject"
EVENTS, GOAL_S, GOAL_RATIO = 100_000, 2.0, 2.0

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
    begin = time.perf_counter()
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    spent.append(time.perf_counter() - begin)
    if step == count - 2:
        print(sorted(spent)[len(spent) // 2], flush=True)
"""
HISTORY = f"""
import torch
for _ in range({EVENTS // 3 + 1}):
    torch.empty(1 << 12, device="cuda")
print("end", flush=True)
"""  # an allocation is three events: taken, given back, free


def run(program: str, steps: int, tracing: bool) -> tuple[str, float, Path, tempfile.TemporaryDirectory[str]]:
    """Runs a program on the fake device: its output, how long it took after its last line (s), its folder."""
    folder = tempfile.TemporaryDirectory(prefix="gpumem-bench-")
    out = Path(folder.name)
    gpu = catalog.load().find("a100-80gb")
    settings = {
        "library": str(ROOT / "fake_cuda" / "lib" / "libgpumem_cuda.so"),
        "devices": [
            {
                "name": gpu.name, "uuid": "GPU-0", "memory_bytes": gpu.memory_bytes, "index": 0,
                "context_bytes": gpu.context_bytes, "compute_capability": gpu.capability,
                "sm_count": gpu.sm_count,
            }
        ],
        "enforce_limit": False,
        "node_dir": None,
    }  # fmt: skip
    if tracing:
        settings["trace"] = {"out_dir": str(out), "steps": steps, "max_events": 2_000_000}
    (out / "tracer.json").write_text(json.dumps(settings))
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(steps)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ
        | {
            "PYTHONPATH": str(INJECT),
            "GPUMEM_TRACER": str(out / "tracer.json"),
        },
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    begin = time.perf_counter()
    if process.wait() != 0:
        raise SystemExit("the program failed")
    return line, time.perf_counter() - begin, out, folder


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
        plain.append(float(run(STEPS, options.steps, tracing=False)[0]))
        traced.append(float(run(STEPS, options.steps, tracing=True)[0]))
        _, seconds, out, folder = run(HISTORY, options.steps, tracing=True)
        written.append(seconds)
        (file,) = out.glob("trace-*.json")
        events = len(json.loads(file.read_text())["events"]["action"])
        folder.cleanup()
    ratio = statistics.median(traced) / statistics.median(plain)
    result = {
        "step_s": plain,
        "traced_step_s": traced,
        "ratio": ratio,
        "events": events,
        "history_s": written,
        "goals_met": ratio <= GOAL_RATIO and statistics.median(written) <= GOAL_S,
    }
    if options.json:
        print(json.dumps(result))
    else:
        steps = (f"{statistics.median(times) * 1e3:.1f} ms" for times in (plain, traced))
        print("a step: " + ", traced ".join(steps))
        print(f"ratio:  {ratio:.2f} (goal {GOAL_RATIO})")
        print(f"{events} events collected and written in {statistics.median(written):.2f} s (goal {GOAL_S})")
    return 0 if result["goals_met"] else 1


if __name__ == "__main__":
    sys.exit(main())
