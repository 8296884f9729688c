"""What an answer of each peer costs: processor seconds of the whole command for one job, imports included.

    python -m bench.accuracy.peers.seconds DATA_FOLDER

The rules need a census (PyTorch and the model's library are imported, the model is made without memory and
called once), and then microseconds. So do the learned estimators, which are trained once before.
MemTracker's seconds were noted with its answers.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import processes
from bench.accuracy import peers
from bench.accuracy.jobs import ROOT, SCRIPTS, Job, RowsError, read
from bench.accuracy.peers import fake_tensors

RESULTS = ROOT / "bench" / "results" / "peers_seconds.json"
EACH = 3  # jobs of a data set


def census_seconds(job: Job, python: str) -> float:
    """Processor seconds of a census of one job alone, whether it can be taken or not.

    Raises:
        subprocess.CalledProcessError: the interpreter or the script failed.
    """
    counter = shlex.join([python, str(ROOT / SCRIPTS / "take_census.py")])
    line = shlex.quote(json.dumps(job.command))
    return processes.run(["sh", "-c", f"printf '%s\\n' {line} | {counter}"], ROOT).cpu_s


def seconds_of(peer: str, results: Path = RESULTS) -> float | None:
    """Processor seconds of a peer for one job, as measured earlier; None where that is not known."""
    try:
        found = json.loads(results.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if peer in (*peers.PEERS, *peers.LEARNED):
        return float(found["census_cpu_s"])
    return found["MemTracker_cpu_s"] if peer == fake_tensors.NAME else None


def spread(jobs: Sequence[Job], each: int = EACH) -> list[Job]:
    """Some jobs of each data set, evenly over its list."""
    found = []
    for dataset in dict.fromkeys(job.dataset for job in jobs):
        of_set = [job for job in jobs if job.dataset == dataset]
        found += of_set[:: max(len(of_set) // each, 1)][:each]
    return found


def main() -> int:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.accuracy.peers.seconds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", type=Path, metavar="DATA_FOLDER")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--each", type=int, default=EACH, metavar="N", help="jobs of each data set")
    options = parser.parse_args()
    try:
        jobs = spread(read(options.data, ("xmem", "timm", "mlp")), options.each)
    except RowsError as error:
        print(f"bench.accuracy.peers.seconds: {error}", file=sys.stderr)
        return 2
    taken = []
    for job in jobs:
        try:
            taken.append(census_seconds(job, options.python))
            print(f"{job.dataset} {job.name}: census {taken[-1]:.1f} s", flush=True)
        except subprocess.CalledProcessError as error:
            print(f"{job.dataset} {job.name}: {error}", file=sys.stderr)
    tracked = fake_tensors.seconds()
    found = {
        "census_cpu_s": round(statistics.median(taken), 1),
        "census_jobs": len(taken),
        "MemTracker_cpu_s": round(statistics.median(tracked), 1) if tracked else None,
        "MemTracker_jobs": len(tracked),
    }
    print(json.dumps(found, indent=1))
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
