"""PyTorch's own answer: the job's script on fake tensors under `torch.distributed._tools.mem_tracker`.

MemTracker adds up the tensors that are alive; it knows no cached memory, workspaces or context. It was made
for machines with a GPU: without one PyTorch refuses the backward pass of fake CUDA tensors, so the script
runs on gpumem's fake device here, which MemTracker never calls. PyTorch is 2.14 for all rows, also for those
that were measured with 2.6: the MemTracker of 2.6 misses optimizer states.

A run takes long; `python -m bench.accuracy.peers` makes them and keeps the answers in
`bench/results/memtracker.jsonl`, from where `said` has them.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import fake_device, processes
from bench.accuracy.jobs import ROOT, Job

RESULTS = ROOT / "bench" / "results" / "memtracker.jsonl"
SCRIPT = Path(__file__).parent / "scripts" / "tracked.py"
STEPS = 2
NAME = "MemTracker"


class TrackError(Exception):
    """The script cannot be run on fake tensors; the text is the last line of its error."""


def track(
    command: Sequence[str], python: str = sys.executable, timeout_s: float = 600
) -> tuple[int, processes.Used]:
    """Peak of a script's tensors (bytes), and what the whole run took; `command` is as in `Job`.

    Raises:
        TrackError: it failed or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="gpumem-bench-") as folder:
        environment = fake_device.environment(Path(folder)) | {"OMP_NUM_THREADS": "1"}
        try:
            used = processes.run([python, SCRIPT, str(STEPS), *command], ROOT, environment, timeout_s)
        except subprocess.CalledProcessError as error:
            raise TrackError(_last_line(error.stderr)) from None
        except subprocess.TimeoutExpired:
            raise TrackError(f"not done after {timeout_s:.0f} s") from None
    return int(used.output), used


def _rows(results: Path = RESULTS) -> list[dict[str, Any]]:
    try:
        lines = results.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


@functools.cache
def known(results: Path = RESULTS) -> dict[tuple[str, str], int | None]:
    """The answers that were found (bytes) by data set and name of the job; None where it failed."""
    return {(row["dataset"], row["name"]): row.get("bytes") for row in _rows(results)}


def seconds(results: Path = RESULTS) -> list[float]:
    """Processor seconds of the runs that ended well."""
    return [float(row["cpu_s"]) for row in _rows(results) if "cpu_s" in row]


def said(job: Job, results: Path = RESULTS) -> dict[str, int | None]:
    """MemTracker's answer (bytes), by its name; None where it failed, nothing where it was never asked."""
    key = (job.dataset, job.name)
    answers = known(results)
    return {NAME: answers[key]} if key in answers else {}


def _last_line(text: str | None) -> str:
    lines = [line for line in (text or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no error was told"
