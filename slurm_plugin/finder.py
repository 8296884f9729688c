"""Learns the job ids of decisions: at submission a job has none yet, so Slurm is asked a little later."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from slurm_plugin.slurm import Job, Slurm, SlurmError

log = logging.getLogger("gpumemd")

_FIRST_LOOK_S = 0.15
_PAUSE_S = 0.5
_GIVE_UP_S = 60.0
_GIVE_UP_UNASKED_S = 3600.0
"""The same while Slurm cannot be asked: it may be restarting, and have the job all the same."""

_PAUSE_PER_COST = 50
"""Slurm is kept busy by us for at most a fiftieth of the time."""

_LONGEST_PAUSE_S = 10.0
"""A search takes long on a busy machine too, or while slurmctld restarts; jobs are held meanwhile."""


@dataclass(frozen=True)
class _Expected:
    user_id: int
    since: float
    tell: Callable[[Job | None], None]


class JobFinder(threading.Thread):
    """Waits for the jobs of decisions to appear in Slurm, all in one search at a time."""

    def __init__(self, slurm: Slurm) -> None:
        super().__init__(name="finder", daemon=True)
        self._slurm = slurm
        self._expected: dict[str, _Expected] = {}
        self._changed = threading.Condition()
        self._stopping = False

    def expect(self, decision_id: str, user_id: int, tell: Callable[[Job | None], None]) -> None:
        """Calls `tell` (in the finder's thread) with the job; with None if Slurm has none after a minute.

        None is usual for a submission that Slurm refused, or that only asked when a job would start.
        """
        with self._changed:
            self._expected[decision_id] = _Expected(user_id, time.monotonic(), tell)
            self._changed.notify()

    def stop(self) -> None:
        """Ends the thread; nobody is told any more."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """The thread's work."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._expected or self._stopping)
            if self._pause(_FIRST_LOOK_S):
                return
            cost = self._look()
            pause = min(max(_PAUSE_S, _PAUSE_PER_COST * cost), _LONGEST_PAUSE_S)
            if self._pause(pause if self._expected else 0):
                return

    def _pause(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._stopping, seconds)

    def _look(self) -> float:
        """One search; its cost in seconds."""
        with self._changed:
            expected = dict(self._expected)
        started = time.monotonic()
        found: dict[str, Job] = {}
        patience_s = _GIVE_UP_S
        try:
            found = self._slurm.find({decision: item.user_id for decision, item in expected.items()})
        except SlurmError as error:
            log.warning("jobs cannot be looked up: %s", error)
            patience_s = _GIVE_UP_UNASKED_S
        now = time.monotonic()
        for decision, item in expected.items():
            job = found.get(decision)
            if job is None and now - item.since < patience_s:
                continue
            with self._changed:
                del self._expected[decision]
            try:
                item.tell(job)
            except Exception:  # one decision's trouble must not end the search for the others
                log.exception("decision=%s", decision)
        return now - started
