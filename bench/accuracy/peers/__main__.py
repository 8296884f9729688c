"""Asks MemTracker about jobs, and keeps its answers; goes on where it was stopped.

python -m bench.accuracy.peers DATA_FOLDER [--sets xmem] [--only GLOB] [--python PYTHON]
"""

from __future__ import annotations

import argparse
import json
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from bench.accuracy.jobs import SETS, RowsError, read
from bench.accuracy.peers import fake_tensors


def main() -> int:
    """Asks for the jobs that have no line yet."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.accuracy.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("data", type=Path, metavar="DATA_FOLDER")
    parser.add_argument("--sets", default="xmem", help=f"of {','.join(SETS)}")
    parser.add_argument("--only", default="*", metavar="GLOB", help="jobs by name")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS")
    options = parser.parse_args()
    try:
        jobs = read(options.data, options.sets.split(","))
    except (RowsError, KeyError) as error:
        print(f"bench.accuracy.peers: {error}", file=sys.stderr)
        return 2
    for job in jobs:
        if not fnmatchcase(job.name, options.only) or (job.dataset, job.name) in fake_tensors.known():
            continue
        row: dict[str, object] = {"dataset": job.dataset, "name": job.name}
        try:
            peak, used = fake_tensors.track(job.command, options.python, options.timeout)
            row |= {"bytes": peak, "wall_s": round(used.wall_s, 1), "cpu_s": round(used.cpu_s, 1)}
        except fake_tensors.TrackError as error:
            row["error"] = str(error)
        print(json.dumps(row), flush=True)
        with fake_tensors.RESULTS.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
