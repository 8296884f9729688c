"""Another run, on a whole GPU, for a job that ran out of GPU memory in a part of one.

A job is only taken back while Slurm still completes it. As long as that lasts, jobs that depend on it go on
waiting, and nobody submits it anew. It then waits for two minutes, as every requeued job, in which it gets
the shards of a whole GPU. It is never held: should gpumemd end before that, Slurm starts the job as it was.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass

from history.models import Decision
from history.store import DecisionChanges, Store
from history.wire import Measurement
from settings import Settings
from slurm_plugin.slurm import BatchRun, Slurm, SlurmError, admin_comment
from slurm_plugin.writer import Writer

log = logging.getLogger("gpumemd")

_PAUSE_S = 1.0
_PATIENCE_S = 600.0
_WAITING = "requeueing"


@dataclass(frozen=True)
class _Resize:
    """What a requeued job is still to get; tried until the time `until` (monotonic, seconds)."""

    decision: Decision
    job_id: int
    gres: str
    until: float


class Requeue(threading.Thread):
    """Takes back jobs that ran out of memory (`again`), and gives them a whole GPU (in this thread)."""

    def __init__(self, slurm: Slurm, writer: Writer, settings: Settings) -> None:
        super().__init__(name="requeue", daemon=True)
        self._slurm = slurm
        self._writer = writer
        self._settings = settings
        self._new: queue.Queue[_Resize | None] = queue.Queue()

    def again(self, decision: Decision, measurement: Measurement) -> DecisionChanges:
        """Has a job run again if that is right, and tells what is to be written down about it."""
        problem = unsuited(decision, measurement, self._settings)
        if problem is None:
            try:
                problem = refused(self._slurm.batch_run(measurement.job_id), decision)
                if problem is None:
                    self._slurm.requeue(measurement.job_id)
            except SlurmError as error:
                problem = str(error)
        what = f"ran out of GPU memory in {decision.got}"
        log.info("decision=%s job=%d runs again: %s", decision.id, measurement.job_id, problem or "yes")
        if problem is not None:
            return {"reason": f"{what}; it does not run again: {problem}"}
        self._expect(decision)
        return {"state": _WAITING, "reason": f"{what}; runs again on a whole GPU"}

    def resume(self, store: Store) -> None:
        """Takes up the jobs that an earlier life of the service took back; raises StoreError."""
        for decision in store.decisions_in_state([_WAITING]):
            self._expect(decision)

    def stop(self) -> None:
        """Ends the thread."""
        self._new.put(None)

    def run(self) -> None:
        """The thread's work."""
        waiting: list[_Resize] = []
        while True:
            try:
                new = self._new.get(timeout=_PAUSE_S if waiting else None)
                if new is None:
                    return
                waiting.append(new)
            except queue.Empty:
                waiting = [job for job in waiting if not self._settled(job)]

    def _expect(self, decision: Decision) -> None:
        partition = self._settings.partitions.get(decision.partition or "")
        if partition is not None and decision.job_id is not None:
            gres = f"shard:{partition.shards_per_gpu}"
            self._new.put(_Resize(decision, decision.job_id, gres, time.monotonic() + _PATIENCE_S))

    def _settled(self, job: _Resize) -> bool:
        """Whether nothing is left to do: the job got its GPU, or cannot get it any more."""
        decision, problem, may_pass = job.decision, None, False
        try:
            run = self._slurm.batch_run(job.job_id)
            if run is not None and run.state == "COMPLETING":
                problem, may_pass = "its first run does not end", True
            elif run is None or not _waits_again(run, decision):
                problem = "it does not wait any more"
            else:
                comment = (
                    f"{admin_comment(decision.id, decision.asked or 'gpu', job.gres)} after=out-of-memory"
                )
                self._slurm.resize(job.job_id, job.gres, comment)
        except SlurmError as error:
            problem, may_pass = str(error), True
        if may_pass and time.monotonic() < job.until:
            return False
        log.info(
            "decision=%s job=%d requeued with %s: %s", decision.id, job.job_id, job.gres, problem or "yes"
        )
        changes: DecisionChanges = {"state": "requeued", "got": job.gres}
        if problem is not None:
            changes = {"state": "failed", "reason": f"runs again as it was: {problem}"}
        self._writer.put(lambda store: store.update_decision(decision.id, **changes))
        return True


def _waits_again(run: BatchRun, decision: Decision) -> bool:
    """Whether it is this job, which waits for its second run: ids come again after a reset of Slurm."""
    same = run.user_id == decision.user_id and run.partition == decision.partition
    return same and run.state == "PENDING" and run.restarts == 1


def unsuited(decision: Decision, measurement: Measurement, settings: Settings) -> str | None:
    """Why another run on a whole GPU would not help, or might do harm; None if it is worth trying."""
    if not settings.requeue.enabled:
        return "switched off"
    partition = settings.partitions.get(decision.partition or "")
    if partition is None or not partition.enabled:
        return "its partition is switched off"
    if decision.limit_bytes is not None:
        return "the memory guard's limit would stay in its environment"
    if [gpu.shared for gpu in measurement.gpus] != [True]:
        return "it is not known that others were on its GPU"
    if measurement.started_at is None:
        return "not known how long it ran"
    if (measurement.ended_at - measurement.started_at).total_seconds() > settings.requeue.within_s:
        return f"it ran for more than {settings.requeue.within_s} s"
    return None


def refused(run: BatchRun | None, decision: Decision) -> str | None:
    """Why a job must not be taken back; None if it may, and nobody has seen yet that it failed."""
    if run is None or run.user_id != decision.user_id:
        return "Slurm does not know it any more"
    if not run.requeue:
        return "--no-requeue"
    if run.restarts:
        return "it was started again before"
    if run.is_task:
        return "a task of an array"
    if run.partition != decision.partition:
        return "its partition has changed"
    if run.is_bound:
        return "it has a reservation or a deadline"
    if run.state != "COMPLETING":
        return f"known too late, it is {run.state} already"
    return None if run.reason == "NonZeroExitCode" else "it was ended from outside"
