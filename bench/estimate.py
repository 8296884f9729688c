"""How long an estimate takes beside importing torch, and how much host memory.

    python -m bench.estimate [--runs 5] [--json]

The job is examples/gpt2.py: GPT-2 124M, batch 12 x 1024, AdamW, three traced steps. The goal is at most
3 s above the time that `import torch, transformers` takes, and at most 1.2 GiB of resident memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMPORT = "import torch, transformers; from transformers import GPT2LMHeadModel"
GOAL_S, GOAL_BYTES = 3.0, 1.2 * 2**30


def seconds(command: list[str]) -> float:
    """Wall time of one run; the command must succeed."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT / "examples")
    return time.perf_counter() - start


def main() -> int:
    """Runs both commands in turn, so that a busy moment hits both alike."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    estimate = [
        sys.executable, "-m", "estimator", "estimate", "--gpu", "a100-80gb", "--steps", "3",
        "--", sys.executable, str(ROOT / "examples" / "gpt2.py"),
    ]  # fmt: skip
    imports, estimates = [], []
    for _ in range(options.runs):
        imports.append(seconds([sys.executable, "-c", IMPORT]))
        estimates.append(seconds(estimate))
    resident = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    above = statistics.median(estimates) - statistics.median(imports)
    result = {
        "import_s": imports,
        "estimate_s": estimates,
        "above_import_s": above,
        "resident_bytes": resident,
        "goals_met": above <= GOAL_S and resident <= GOAL_BYTES,
    }
    if options.json:
        print(json.dumps(result))
    else:
        for name, values in (("import torch, transformers", imports), ("gpumem estimate", estimates)):
            shown = f"{min(values):6.2f} {statistics.median(values):6.2f} {max(values):6.2f}"
            print(f"{name:28} {shown}   s (least, median, most)")
        print(f"{'above the import':28} {above:13.2f}          s (goal {GOAL_S})")
        print(
            f"{'largest resident memory':28} {resident / 2**30:13.2f}        GiB (goal {GOAL_BYTES / 2**30})"
        )
    return 0 if result["goals_met"] else 1


if __name__ == "__main__":
    sys.exit(main())
