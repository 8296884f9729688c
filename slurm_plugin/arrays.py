"""Of which array a measured job was a task: the decision is about the array, and only Slurm knows its tasks.

Slurm gives prologs and epilogs no SLURM_ARRAY_ variables, and forgets a job minutes after its end
(MinJobAge), so it is asked as soon as a measurement comes, about many jobs at a time.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from history.store import Store, StoreError
from history.wire import Measurement
from slurm_plugin.slurm import SlurmError
from slurm_plugin.writer import Writer

log = logging.getLogger("gpumemd")

_MOST_WAITING = 10_000
_MOST_AT_ONCE = 500
_PAUSE_S = 1.0
_PAUSE_PER_COST = 50
"""Slurm is kept busy by us for at most a fiftieth of the time."""


class KnowsArrays(Protocol):
    """Who knows the tasks of arrays."""

    def arrays(self, job_ids: Sequence[int]) -> Mapping[int, int]:
        """Those of these jobs that are tasks of an array, with its job id; raises SlurmError."""
        ...


class ArrayTasks(threading.Thread):
    """Asks Slurm about measured jobs that no decision is about, and notes whose tasks they are.

    `told` is called (in this thread) when something was found.
    """

    def __init__(self, store: Store, writer: Writer, slurm: KnowsArrays, told: Callable[[], None]) -> None:
        super().__init__(name="arrays", daemon=True)
        self._store = store
        self._writer = writer
        self._slurm = slurm
        self._told = told
        self._jobs: queue.Queue[Measurement | None] = queue.Queue(_MOST_WAITING)
        self._stopping = threading.Event()

    def look_at(self, measurements: Sequence[Measurement]) -> None:
        """Takes note of stored measurements; returns at once."""
        for measurement in measurements:
            if not self._jobs.full():
                self._jobs.put_nowait(measurement)

    def stop(self) -> None:
        """Ends the thread after the look that it takes."""
        self._stopping.set()
        while not self._jobs.empty():
            self._jobs.get_nowait()
        self._jobs.put(None)

    def run(self) -> None:
        """The thread's work."""
        while (first := self._jobs.get()) is not None:
            some = [first]
            while len(some) < _MOST_AT_ONCE and not self._jobs.empty():
                if (following := self._jobs.get()) is None:
                    return
                some.append(following)
            began = time.monotonic()
            try:
                self.examine(some)
            except (SlurmError, StoreError) as error:
                log.info("whether %d jobs were tasks of arrays is not known: %s", len(some), error)
            except Exception:  # some jobs' trouble must not end the thread
                log.exception("arrays of %d jobs", len(some))
            self._stopping.wait(max(_PAUSE_S, _PAUSE_PER_COST * (time.monotonic() - began)))

    def examine(self, measurements: Sequence[Measurement]) -> None:
        """Looks at these; raises SlurmError or StoreError where it cannot be known."""
        unknown = [one for one in measurements if self._store.decision_of_job(one.job_id) is None]
        if not unknown:
            return
        arrays = self._slurm.arrays(sorted({one.job_id for one in unknown}))
        found = {one.id: arrays[one.job_id] for one in unknown if one.job_id in arrays}
        if found:
            self._writer.put(lambda store: store.note_arrays(found)).result(60)
            self._told()
