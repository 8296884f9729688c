"""Runs `gpumem estimate` on rows, some at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from bench.coverage.rows import SCRIPTS, Row, Status

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 480  # of a dry run: longer than the default, for rows share the machine
NOT_ASSUMED = ("the CUDA context",)  # a note about every row


class Cause(BaseModel):
    """What made an estimate a bounded one; `bytes` of the peak hang on it, None if unknown."""

    model_config = ConfigDict(extra="ignore")

    what: str
    kind: str = "run"
    bytes: int | None = None


class Result(BaseModel):
    """What one row came to. Sizes in bytes; None is unknown."""

    name: str
    group: str
    status: Status | None  # None: not run, `reason` says why
    expected: Status
    wall_s: float | None = None  # of the whole command, replay included
    host_memory_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    allocated_peak_bytes: int | None = None
    least_bytes: int | None = None
    steps: int | None = None
    torch_version: str | None = None
    phase_of_peak: str | None = None
    bounded_by: tuple[Cause, ...] = ()
    reason: str | None = None
    fault: str | None = None  # why this row is not as it should be


def run_all(
    rows: Sequence[Row], jobs: int, started: Callable[[Row], None] = lambda row: None
) -> Iterator[Result]:
    """The results as they come, `jobs` rows at a time; `started` is called when a row begins."""

    def one(row: Row) -> Result:
        started(row)
        return run(row)

    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(one, row) for row in rows]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def run(row: Row) -> Result:
    """The estimate of one row, and whether it is what the row says."""
    if missing := row.missing():
        return Result(
            name=row.name,
            group=row.group,
            status=None,
            expected=row.status,
            reason=f"{', '.join(missing)} not installed",
        )
    timeout = () if "--timeout" in row.args else ("--timeout", str(TIMEOUT_S))
    command = [
        sys.executable, "-P", "-m", "estimator", "estimate", "--no-cache",
        "--json", "--gpu", row.gpu, *timeout, *row.args,
        "--chdir", str(SCRIPTS), *_what_runs(row.words()),
    ]  # fmt: skip
    programs = str(Path(sys.executable).parent)  # torchrun and the like
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    return judge(row, _object(done.stdout), time.perf_counter() - start, done.stderr)


def _what_runs(words: list[str]) -> list[str]:
    """A batch script by its path, for `--chdir` is where it starts; or a command."""
    return [str(SCRIPTS / words[0]), *words[1:]] if words[0].endswith(".sbatch") else ["--", *words]


def judge(row: Row, estimate: dict[str, Any], wall_s: float, errors: str = "") -> Result:
    """The result of a row from what `gpumem estimate --json` printed and how long it took (s)."""
    status: Status = "failed"
    reason: str | None = None
    if estimate.get("status") in ("exact", "bounded"):
        status = estimate["status"]
    else:
        reason = estimate.get("reason") or (errors.strip().splitlines() or ["no output"])[-1]
    result = Result(
        name=row.name,
        group=row.group,
        status=status,
        expected=row.status,
        wall_s=round(wall_s, 1),
        host_memory_bytes=estimate.get("host_memory_bytes"),
        reserved_peak_bytes=estimate.get("reserved_peak_bytes"),
        allocated_peak_bytes=estimate.get("allocated_peak_bytes"),
        least_bytes=row.least_bytes,
        steps=estimate.get("steps"),
        torch_version=estimate.get("torch_version"),
        phase_of_peak=estimate.get("phase_of_peak"),
        bounded_by=_causes(estimate) if status == "bounded" else (),
        reason=reason,
    )
    return result.model_copy(update={"fault": _fault(row, result, estimate)})


def _fault(row: Row, result: Result, estimate: dict[str, Any]) -> str | None:
    if result.status is not None and row.is_worse(result.status):
        return f"{result.status}, should be {row.status}"
    if result.status == "failed":
        return None
    allocated, least = result.allocated_peak_bytes, result.least_bytes
    if least is not None and (allocated is None or allocated < least):
        return f"allocated peak {allocated} below parameters, gradients and state: {least}"
    if sum(estimate.get("by_owner", {}).values()) != result.reserved_peak_bytes:
        return "the owners' bytes do not sum to the reserved peak"
    return None


def _causes(estimate: dict[str, Any]) -> tuple[Cause, ...]:
    causes = estimate.get("bounded_by")
    if causes is None:  # an estimate of before there were causes: its notes tell
        notes = [note for note in estimate.get("notes", ()) if not note.startswith(NOT_ASSUMED)]
        return tuple(Cause(what=note) for note in notes)
    return tuple(Cause.model_validate(cause) for cause in causes)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
