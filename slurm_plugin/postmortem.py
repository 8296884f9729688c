"""Whether a job that failed ran out of GPU memory: it says so itself, in its error output."""

from __future__ import annotations

import logging
import os
import queue
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from history.models import Decision
from history.store import DecisionChanges, Store, StoreError
from history.wire import Measurement
from slurm_plugin.access import NoAccess, as_user
from slurm_plugin.slurm import SlurmError
from slurm_plugin.writer import Writer

log = logging.getLogger("gpumemd")

_TAIL_BYTES = 256 * 1024
_MOST_WAITING = 10_000
_MOST_REMEMBERED = 1000
_SIGNS = (b"CUDA out of memory", b"torch.OutOfMemoryError", b"torch.cuda.OutOfMemoryError")


class ErrorFiles(Protocol):
    """Where jobs write their errors."""

    def error_file(self, job_id: int) -> Path | None:
        """The file, None if it is not known; raises SlurmError."""
        ...


class Postmortem(threading.Thread):
    """Looks at the error output of failed jobs that were given a part of a GPU, with their users' rights.

    Only whether memory ran out is kept. If it did, `again` is called (in this thread) at once, and says what
    else is to be written down; `told` when that is done.
    """

    def __init__(
        self,
        store: Store,
        writer: Writer,
        slurm: ErrorFiles,
        again: Callable[[Decision, Measurement], DecisionChanges],
        told: Callable[[], None],
    ) -> None:
        super().__init__(name="postmortem", daemon=True)
        self._store = store
        self._writer = writer
        self._slurm = slurm
        self._again = again
        self._told = told
        self._jobs: queue.Queue[Measurement | None] = queue.Queue(_MOST_WAITING)
        self._examined: OrderedDict[int, None] = OrderedDict()

    def look_at(self, measurements: Sequence[Measurement]) -> None:
        """Takes note of the jobs that failed; returns at once."""
        for measurement in measurements:
            if measurement.exit_code and not self._jobs.full():
                self._jobs.put_nowait(measurement)

    def stop(self) -> None:
        """Ends the thread after the job that it looks at."""
        while not self._jobs.empty():
            self._jobs.get_nowait()
        self._jobs.put(None)

    def is_examined(self, job_id: int) -> bool:
        """Whether a job was looked at after its end, or never will be; raises StoreError."""
        if job_id in self._examined:
            return True
        decision = self._store.decision_of_job(job_id)
        return decision is None or not _got_a_part(decision)

    def run(self) -> None:
        """The thread's work."""
        while (measurement := self._jobs.get()) is not None:
            job_id = measurement.job_id
            try:
                self.examine(measurement)
            except (SlurmError, StoreError, NoAccess, OSError) as error:
                log.info("job=%d: whether it ran out of memory is not known: %s", job_id, error)
            except Exception:  # one job's trouble must not end the thread
                log.exception("job=%d", job_id)
            self._examined[job_id] = None
            while len(self._examined) > _MOST_REMEMBERED:
                self._examined.popitem(last=False)

    def examine(self, measurement: Measurement) -> None:
        """One job; raises SlurmError, StoreError, NoAccess or OSError where it cannot be known."""
        job_id = measurement.job_id
        decision = self._store.decision_of_job(job_id)
        if decision is None or not _got_a_part(decision) or decision.out_of_memory is not None:
            return
        path = self._slurm.error_file(job_id)
        if path is None:
            return
        ran_out = _says_so(path, decision)
        log.info("decision=%s job=%d failed, out of GPU memory: %s", decision.id, job_id, ran_out)
        name = decision.id
        changes: DecisionChanges = {"out_of_memory": ran_out}
        if ran_out:
            changes |= self._again(decision, measurement)
        self._writer.put(lambda store: store.update_decision(name, **changes)).result(60)
        if ran_out:
            self._told()


def _got_a_part(decision: Decision) -> bool:
    """Whether it was given a part of a GPU; one that is only observed has a promise all the same."""
    return decision.promised_bytes is not None and decision.action != "pass"


def _says_so(path: Path, decision: Decision) -> bool:
    with as_user(decision.user_id):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{path} is not a regular file")
            file.seek(max(0, status.st_size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES)
    return any(sign in text for sign in _SIGNS)
