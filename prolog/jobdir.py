"""What prolog, sampler and epilog of one job tell each other: files in `run_dir`/<job id>, for root only.

job.json       written by the prolog; the sampler ends when it disappears or is replaced
state.json     written by the sampler
shared-<gpu>   another job was given the same GPU while this one ran

`run_dir`/ended-<job id> is written by an epilog that found no job.json: for a prolog that is later still.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prolog import files
from prolog.nvml import Gpu
from prolog.processes import Process
from prolog.tally import Tally

_MAX_BYTES = 16 * 1024**2
_NOTED_S = 3600  # no prolog is later than that


@dataclass(frozen=True)
class GpuBefore:
    """A GPU as the prolog found it.

    `name` is Slurm's for it: an index or a UUID. `accounting`: the driver keeps records from before the job's
    first process on. `accounts`: start times (Unix µs) by PID of the records that were there already.
    """

    name: str
    gpu: Gpu | None = None
    accounting: bool = False
    accounts: Mapping[int, int] | None = None


@dataclass(frozen=True)
class JobRecord:
    """One run of a job on this node; `measurement_id` counts it once, whatever is sent twice."""

    measurement_id: str
    job_id: int
    user_id: int | None
    cluster: str | None
    node: str
    started_at: float
    sampler: Process
    gpus: tuple[GpuBefore, ...]
    problems: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Slurm's names for the GPUs of the job."""
        return tuple(gpu.name for gpu in self.gpus)


class JobDir:
    """The folder of one job."""

    def __init__(self, run_dir: Path, job_id: int) -> None:
        self.path = run_dir / str(job_id)
        self._marker = self.path / "job.json"
        self._state = self.path / "state.json"
        self._ended = run_dir / f"ended-{job_id}"

    def create(self, record: JobRecord) -> None:
        """Starts afresh for this run of the job; raises OSError."""
        shutil.rmtree(self.path, ignore_errors=True)
        files.make_private(self.path.parent)
        files.make_private(self.path)
        self.write_record(record)

    def write_record(self, record: JobRecord) -> None:
        """Replaces job.json; raises OSError."""
        files.write(self._marker, json.dumps(asdict(record)).encode())

    def record(self) -> JobRecord | None:
        """What the prolog left; None: nothing that can be read."""
        try:
            document = json.loads(files.read(self._marker, _MAX_BYTES))
            gpus = tuple(_gpu_before(gpu) for gpu in document["gpus"])
            record = JobRecord(
                **{
                    **document,
                    "sampler": Process(**document["sampler"]),
                    "gpus": gpus,
                    "problems": tuple(document["problems"]),
                }
            )
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        return record

    def marker(self) -> tuple[int, int] | None:
        """Changes when job.json is replaced; None when it is gone."""
        try:
            status = self._marker.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def note_end(self) -> None:
        """Notes that the job has ended before its prolog wrote anything; look for its record afterwards."""
        with contextlib.suppress(OSError):  # then a prolog cannot write there either
            files.make_private(self._ended.parent)
            files.write(self._ended, b"")
            for note in self._ended.parent.glob("ended-*"):
                if note.stat().st_mtime < time.time() - _NOTED_S:
                    note.unlink()

    def ended_since(self, since: float) -> bool:
        """Whether that was noted after `since` (Unix time); ask once the record is written."""
        try:
            return self._ended.stat().st_mtime > since
        except OSError:
            return False

    def write_tally(self, tally: Tally) -> None:
        """Replaces state.json; raises OSError."""
        if self._marker.exists():  # do not raise the dead
            files.write(self._state, json.dumps(tally.to_json()).encode())

    def tally(self) -> Tally | None:
        """What the sampler knew when it last wrote; None: nothing that can be read."""
        try:
            return Tally.from_json(json.loads(files.read(self._state, _MAX_BYTES)))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def mark_shared(self) -> None:
        """Notes, here and there, the GPUs that this job has in common with others on this node.

        Every prolog writes its job.json first and looks round afterwards: of two that start at the same time
        at least one sees the other, and notes it for both.
        """
        own = self.record()
        for path in self.path.parent.iterdir() if own else ():
            if path == self.path or not path.name.isdecimal():
                continue
            other = JobDir(path.parent, int(path.name))
            record = other.record()
            for name in set(record.names).intersection(own.names) if own and record else ():
                for job in (self, other):
                    job._note_shared(name)

    def is_shared(self, name: str) -> bool:
        """Whether another job was given this GPU while this one ran."""
        return self._shared(name).exists()

    def remove(self) -> None:
        """Removes the folder; never fails."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _shared(self, name: str) -> Path:
        return self.path / f"shared-{name.replace('/', '_')}"

    def _note_shared(self, name: str) -> None:
        try:
            flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC
            os.close(os.open(self._shared(name), flags, 0o600))
        except FileNotFoundError:  # that job has just ended
            return


def with_gpus(record: JobRecord, gpus: tuple[GpuBefore, ...], problems: tuple[str, ...]) -> JobRecord:
    """The record once NVML has answered."""
    return replace(record, gpus=gpus, problems=record.problems + problems)


def _gpu_before(document: dict[str, Any]) -> GpuBefore:
    accounts = document["accounts"]
    return GpuBefore(
        name=document["name"],
        gpu=Gpu(**document["gpu"]) if document["gpu"] else None,
        accounting=document["accounting"],
        accounts=None if accounts is None else {int(pid): int(start) for pid, start in accounts.items()},
    )
