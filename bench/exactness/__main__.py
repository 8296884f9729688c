"""Allocator peaks to the byte, against published ones from real GPUs.

    python -m bench.exactness ROWS.csv CODE [--only CASE] [--python PYTHON] [--json FILE]

ROWS.csv has a measured run in each row: columns `case`, `d_model`, `d_ff`, `layers`, `heads`, `batch`,
`seq`, `dtype`, `mode`, `checkpoint_segments`, `peak_allocated_bytes`, `peak_reserved_bytes`, `status`. CODE
is a folder with the package `cs336_basics` (github.com/stanford-cs336/assignment2-systems, its folder
cs336-basics) and what it imports. PYTHON should have the PyTorch that was measured. Exits with 0 if all rows
are equal to the byte.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from estimator import recorded_by, trace
from estimator.allocator import DEFAULT_CONFIG, Action, Allocator

ROOT = Path(__file__).parent.parent.parent
MEASURED_STEPS = 10
SCRIPT = Path(__file__).with_name("language_model.py")


def estimate(row: dict[str, str], code: Path, python: str, gpu: str) -> dict[str, Any]:
    """The JSON object of `gpumem estimate` for one row, with `last_step_allocated`, a peak in bytes."""
    words = [row[name] for name in ("d_model", "d_ff", "layers", "heads", "batch", "seq", "dtype", "mode")]
    steps = str(int(row["warmup"]) + MEASURED_STEPS + 1)
    words += ["--steps", steps]
    if row["checkpoint_segments"]:
        words += ["--segments", row["checkpoint_segments"]]
    paths = [str(code.resolve()), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "trace.json"
        done = subprocess.run(
            [sys.executable, "-m", "estimator", "estimate", "--no-cache",
        "--json", "--gpu", gpu, "--timeout", "300",
             "--steps", steps, "--trace", str(kept), "--", python, str(SCRIPT), *words],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True, text=True,
        )  # fmt: skip
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            return {"status": "failed", "reason": done.stderr[-500:]}
        if answer["status"] != "failed":
            answer["last_step_allocated"] = last_step_allocated(trace.read(kept))
        return answer


def last_step_allocated(recorded: trace.Trace) -> int:
    """The most bytes that were allocated in the last step, which is what was measured."""
    assert recorded.events is not None
    config = recorded_by.find(recorded.events, recorded_by.candidates())[1] or DEFAULT_CONFIG
    last = max(mark.step for mark in recorded.marks)
    begin = next((mark.event for mark in recorded.marks if last and mark.step == last - 1), 0)
    allocator = Allocator(config=config)
    peak, segment = 0, None
    for event, (action, address, size, stream) in enumerate(recorded.events.rows()):
        if action == Action.ALLOC:
            allocator.malloc(address, size, stream, segment)
            segment = None
            if event >= begin:
                peak = max(peak, allocator.allocated)
        elif action == Action.FREE_REQUESTED:
            allocator.free(address)
        elif action == Action.FREE_COMPLETED:
            allocator.complete_free(address)
        elif action == Action.SEGMENT_ALLOC:
            segment = address
    return peak


def compared(row: dict[str, str], answer: dict[str, Any]) -> dict[str, Any]:
    """Measured and estimated peaks; an out-of-memory row is right if the estimate does not fit."""
    found: dict[str, Any] = {"case": row["case"], "status": answer["status"], "reason": answer.get("reason")}
    if answer["status"] == "failed":
        return found | {"equal": False}
    found |= {
        "fits": answer["fits"],
        "allocated": answer["last_step_allocated"],
        "reserved": answer["reserved_peak_bytes"],
        "seconds": answer["wall_s"],
        "host_bytes": answer["host_memory_bytes"],
        "torch": answer["torch_version"],
    }
    if row["status"] == "oom":
        return found | {"measured": "out of memory", "equal": not answer["fits"]}
    measured = {"allocated": int(row["peak_allocated_bytes"]), "reserved": int(row["peak_reserved_bytes"])}
    return found | {
        "measured": measured,
        "equal": all(found[name] == value for name, value in measured.items()),
    }


def shown(row: dict[str, Any]) -> str:
    """A row as a line of the table."""
    mark = "equal " if row["equal"] else "DIFFER"
    if row["status"] == "failed":
        return f"{mark} {row['case']}: {row['reason']}"
    if isinstance(row["measured"], str):
        return (
            f"{mark} {row['case']}: {row['measured']}, estimate {'fits' if row['fits'] else 'does not fit'}"
        )
    differences = ", ".join(
        f"{name} {row[name]:,} ({row[name] - value:+,})" for name, value in row["measured"].items()
    )
    cost = f"{row['seconds']:.1f} s, {row['host_bytes'] / 2**20:.0f} MiB of RAM"
    return f"{mark} {row['case']}: {differences}; {cost}"


def main() -> int:
    """Runs all rows."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.exactness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("code", type=Path)
    parser.add_argument("--only", metavar="CASE", default="*", help="name or pattern of the cases")
    parser.add_argument("--gpu", default="b200", help="the GPU as the catalogue names it (default b200)")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter with the PyTorch that was measured"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with options.rows.open(newline="") as file:
        rows = list(csv.DictReader(file))
    done = []
    for row in rows:
        if not fnmatchcase(row["case"], options.only):
            continue
        done.append(compared(row, estimate(row, options.code, options.python, options.gpu)))
        print(shown(done[-1]), flush=True)
    equal = sum(row["equal"] for row in done)
    print(f"{equal}/{len(done)} equal")
    if options.json:
        options.json.write_text(json.dumps(done, indent=1) + "\n")
    return 0 if equal == len(done) else 1


if __name__ == "__main__":
    sys.exit(main())
