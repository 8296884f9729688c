"""Holds estimates against what was measured.

    python -m bench.groundtruth.compare RESULTS.jsonl --gpu h200 [--python PYTHON] [--json FILE] [NAME ...]

Every job of the results is estimated here, with the PyTorch of PYTHON (its version should be that of the
results), and the allocator's peaks and NVML's are compared. Prints a row for each job and what the literature
asks for: median and 95th percentile of the relative error, and how many answers were too low.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
GIB = 1024**3


def estimate(job: str, gpu: str, python: str, timeout_s: int) -> dict[str, Any]:
    """The JSON object of `gpumem estimate` for one job."""
    command = [
        sys.executable, "-m", "estimator", "estimate", "--no-cache",
        "--json", "--gpu", gpu, "--timeout", str(timeout_s),
        "--", python, "-m", "bench.groundtruth.train", job,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        answer = {"status": "failed", "reason": done.stderr[-500:]}
    return answer


def compared(measured: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """One row: truth and estimate in bytes, and signed relative errors."""
    last = measured["stages"][-1]
    truth = measured["nvml_peak_accounted"] or measured["nvml_peak_sampled"] or measured["nvml_device_rise"]
    row = {
        "job": measured["job"],
        "status": answer["status"],
        "reason": answer.get("reason"),
        "nvml_peak": truth,
        "allocated_peak": last["allocated_peak"],
        "reserved_peak": last["reserved_peak"],
        "outside": last["nvml_process"] - last["reserved"] if last["nvml_process"] else None,
    }
    if answer["status"] == "failed":
        return row
    return row | {
        "estimated_peak": answer["peak_bytes"],
        "estimated_allocated": answer["allocated_peak_bytes"],
        "estimated_reserved": answer["reserved_peak_bytes"],
        "recommended": answer["recommended_bytes"],
        "seconds": answer["wall_s"],
        "error": (answer["peak_bytes"] - truth) / truth if truth else None,
        "reserved_error": (answer["reserved_peak_bytes"] - last["reserved_peak"]) / last["reserved_peak"],
        "too_low": answer["recommended_bytes"] < truth if truth and answer["recommended_bytes"] else None,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The metrics over all rows that have an estimate."""
    known = [row for row in rows if row.get("error") is not None]
    errors = sorted(abs(row["error"]) for row in known)
    exact = [row for row in rows if row.get("reserved_error") == 0]
    estimated = [row for row in rows if row["status"] != "failed"]
    return {
        "jobs": len(rows),
        "estimated": len(estimated),
        "reserved_exact": len(exact) / len(estimated) if estimated else None,
        "median_error": statistics.median(errors) if errors else None,
        "p95_error": errors[min(len(errors) - 1, int(0.95 * len(errors)))] if errors else None,
        "too_low": sum(bool(row["too_low"]) for row in known) / len(known) if known else None,
    }


def main() -> int:
    """Estimates what was measured; 0 if all of it could be."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.groundtruth.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="names or patterns of jobs; all by default")
    parser.add_argument("--gpu", required=True, help="the GPU as the catalogue names it")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter with the PyTorch that was measured"
    )
    parser.add_argument("--timeout", type=int, default=200, help="longest time for one estimate (s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows and summary here")
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.results.read_text().splitlines() if line.strip()]
    wanted = [
        line
        for line in lines
        if line["status"] == "ok" and "stages" in line
        if not options.names or any(fnmatchcase(line["job"], name) for name in options.names)
    ]
    rows = []
    for measured in wanted:
        row = compared(measured, estimate(measured["job"], options.gpu, options.python, options.timeout))
        rows.append(row)
        if row["status"] == "failed":
            print(f"{'failed':>9} {row['job']}: {row['reason']}", flush=True)
            continue
        error = f"{100 * row['error']:+8.2f} %" if row["error"] is not None else "         -"
        reserved = f"{100 * row['reserved_error']:+8.3f} %"
        print(f"{error} NVML {reserved} reserved {row['status']:8} {row['job']}", flush=True)
    totals = summary(rows)
    print(json.dumps(totals))
    if options.json:
        options.json.write_text(json.dumps({"summary": totals, "rows": rows}, indent=1) + "\n")
    return 0 if totals["estimated"] == totals["jobs"] else 1


if __name__ == "__main__":
    sys.exit(main())
