"""How long an estimate takes beside importing torch, and how much host memory.

    python -m bench.estimate [--runs 5] [--json]

The job is examples/gpt2.py: GPT-2 124M, batch 12 x 1024, AdamW, three traced steps. The goal is at most
3 s above the time that `import torch, transformers` takes, and at most 1.2 GiB of resident memory. Processor
time is told beside that on the clock: other programs on the machine stretch it less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from bench import processes

ROOT = Path(__file__).parent.parent
IMPORT = "import torch, transformers; from transformers import GPT2LMHeadModel"
GOAL_S, GOAL_BYTES = 3.0, 1.2 * 2**30


def main() -> int:
    """Runs both commands in turn, so that a busy moment hits both alike."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    estimate = [
        sys.executable, "-m", "estimator", "estimate", "--no-cache", "--gpu", "a100-80gb", "--steps", "3",
        "--", sys.executable, str(ROOT / "examples" / "gpt2.py"),
    ]  # fmt: skip
    imports, estimates = [], []
    for _ in range(options.runs):
        imports.append(processes.run([sys.executable, "-c", IMPORT], ROOT / "examples"))
        estimates.append(processes.run(estimate, ROOT / "examples"))
    resident = max(used.resident_bytes for used in estimates)
    clocks = {
        clock: [[getattr(used, clock) for used in runs] for runs in (imports, estimates)]
        for clock in ("wall_s", "cpu_s")
    }
    above = {
        clock: statistics.median(with_it) - statistics.median(without)
        for clock, (without, with_it) in clocks.items()
    }
    result = {
        "import": dict(zip(clocks, (times[0] for times in clocks.values()), strict=True)),
        "estimate": dict(zip(clocks, (times[1] for times in clocks.values()), strict=True)),
        "above_import": above,
        "resident_bytes": resident,
        "goals_met": above["wall_s"] <= GOAL_S and resident <= GOAL_BYTES,
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{'s (least, median, most)':28} {'clock':>20} {'processor':>20}")
        for row, name in enumerate(("import torch, transformers", "gpumem estimate")):
            shown = [
                " ".join(f"{pick(times[row]):6.2f}" for pick in (min, statistics.median, max))
                for times in clocks.values()
            ]
            print(f"{name:28} {shown[0]} {shown[1]}")
        print(
            f"{'above the import':28} {above['wall_s']:13.2f} {above['cpu_s']:20.2f}        (goal {GOAL_S})"
        )
        print(f"largest resident memory: {resident / 2**30:.2f} GiB (goal {GOAL_BYTES / 2**30})")
    return 0 if result["goals_met"] else 1


if __name__ == "__main__":
    sys.exit(main())
