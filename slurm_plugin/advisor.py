"""What gpumemd does with a submission: answers it, has its script traced, and settles the job afterwards."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

from pydantic import ValidationError

from estimator import secrets
from history import models
from history.calibration import Calibration
from history.models import new_id
from history.store import Store
from slurm_plugin import policy
from slurm_plugin.finder import JobFinder
from slurm_plugin.gres import Unsupported
from slurm_plugin.known import FAILURE_LASTS_S, KnownResults, unchanged
from slurm_plugin.policy import Candidate, Decision, Known, Share, Site, unusable
from slurm_plugin.slurm import Job, Partition, Slurm, SlurmError, admin_comment
from slurm_plugin.traces import Result, Task, Traced, TraceQueue
from slurm_plugin.wire import Estimated, Failure, Reply, Submission, read_submission
from slurm_plugin.writer import Writer

log = logging.getLogger("gpumemd")

_LOOK_AT_INPUTS_S = 0.015
_MOST_LOOKS = 32
_LOOKERS = 8
_MOST_UNDERSTOOD = 64
_UNFINISHED = ("queued", "tracing")
_ENDED = (
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "OUT_OF_MEMORY",
    "NODE_FAIL",
    "BOOT_FAIL",
    "DEADLINE",
)


@dataclass(frozen=True, kw_only=True)
class Deferred(Task):
    """A job whose script is traced.

    `held`: it waits for the result; else only later submissions profit. `submitted`: unix time.
    """

    job: Candidate
    submitted: float
    held: bool
    job_id: int | None = None


@dataclass(frozen=True)
class Understood:
    """A submission, and what does not change when the same is submitted again.

    Either `job` and `fingerprint`, or the reason why it has to pass.
    """

    submission: Submission
    job: Candidate | None = None
    fingerprint: str = ""
    reason: str = ""


class Advisor:
    """Decides about submissions and carries deferred ones through.

    `advise` runs in the event loop and never blocks it; everything else runs in the threads of the finder and
    of the trace queue.
    """

    def __init__(
        self,
        site: Site,
        slurm: Slurm,
        finder: JobFinder,
        writer: Writer,
        known: KnownResults,
        margins: Callable[[], Calibration],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._site = site
        self._settings = site.settings
        self._slurm = slurm
        self._finder = finder
        self._writer = writer
        self._known = known
        self._margins = margins
        self._clock = clock
        self._lookers = ThreadPoolExecutor(_LOOKERS, thread_name_prefix="inputs")
        self._looks = 0
        self._understood = lru_cache(_MOST_UNDERSTOOD)(self._understand)  # a script is often submitted again
        self.traces: TraceQueue | None = None

    def trace_with(self, trace: Callable[[Task], Traced], workers: int) -> TraceQueue:
        """Makes the queue of traces; `trace` runs one of them."""
        self.traces = TraceQueue(trace, workers, self._trace_began, self._trace_ended)
        return self.traces

    def learn(self, in_slurm: Mapping[str, Partition]) -> None:
        """Takes note of what only a running slurmctld knows (see `Site`)."""
        if in_slurm == self._site.in_slurm:
            return
        self._site = replace(self._site, in_slurm=in_slurm)
        self._understood.cache_clear()
        for name, partition in self._settings.partitions.items():
            problem = unusable(name, partition, in_slurm.get(name)) if partition.enabled else None
            if problem:
                log.warning("jobs of partition %s pass unchanged: %s", name, problem)

    # ---- at submission

    async def advise(self, body: bytes) -> Reply:
        """The answer to job_submit.lua; from memory, but for a look at the files of a known script.

        Raises:
            ValueError: the body is no submission.
        """
        decision_id = new_id()
        understood = self._understood(body)
        submission, job = understood.submission, understood.job
        known: Known | None = None
        if job is None:
            decision = policy.passed(understood.reason, policy.asked_text(submission))
        else:
            known = await self._still_known(understood.fingerprint, submission)
            decision = policy.decide(
                submission,
                job,
                known,
                self._settings,
                self._margins(),
                understood.fingerprint,
                busy=self._busy(),
            )
        # slurmctld waits: the answer goes first
        asyncio.get_running_loop().call_soon(self._follow_up, decision_id, understood, decision, known)
        return Reply(
            action=decision.action,
            decision_id=decision_id,
            set=decision.set,
            begin_in_s=decision.begin_in_s,
            environment=decision.environment,
            export=decision.export,
            admin_comment=admin_comment(decision_id, decision.asked or "gpu"),
            message=decision.message,
        )

    def _understand(self, body: bytes) -> Understood:
        submission = read_submission(body)
        try:
            job = policy.candidate(submission, self._site)
        except Unsupported as reason:
            return Understood(submission, reason=str(reason))
        fingerprint = policy.fingerprint(
            submission, job.partition, self._settings.estimate, guarded=self._settings.guard.enabled
        )
        return Understood(submission, job, fingerprint)

    def _follow_up(
        self, decision_id: str, understood: Understood, decision: Decision, known: Known | None
    ) -> None:
        """What a decision entails: a record, and a trace once the job has come to be."""
        task = None
        if understood.job is not None and decision.trace:
            task = Deferred(
                decision_id=decision_id,
                fingerprint=understood.fingerprint,
                submission=understood.submission,
                gpu=understood.job.partition.gpu,
                job=understood.job,
                submitted=self._clock(),
                held=decision.action == "defer",
            )
        self._record(decision_id, understood, decision, known, task)
        self._finder.expect(decision_id, understood.submission.uid, partial(self._found, decision_id, task))

    async def _still_known(self, fingerprint: str, submission: Submission) -> Known | None:
        known = self._known.get(fingerprint)
        if known is None:
            return None
        if known.estimate is not None and known.estimate.job_name not in (None, submission.name):
            return None
        if not known.inputs:
            return known
        if self._looks >= _MOST_LOOKS:  # the file system hangs; do not pile up threads' work behind it
            return None
        self._looks += 1
        look = asyncio.get_running_loop().run_in_executor(
            self._lookers, unchanged, known.inputs, submission.uid
        )
        look.add_done_callback(self._looked)
        done, _ = await asyncio.wait([look], timeout=_LOOK_AT_INPUTS_S)
        return known if done and look.result() else None

    def _looked(self, _: object) -> None:
        self._looks -= 1

    def _busy(self) -> bool:
        return self.traces is not None and self.traces.expected_wait_s() > self._settings.defer.budget_s

    def _record(
        self,
        decision_id: str,
        understood: Understood,
        decision: Decision,
        known: Known | None,
        task: Deferred | None,
    ) -> None:
        submission = understood.submission
        log.info(
            "decision=%s action=%s user=%d asked=%s got=%s reason=%s",
            decision_id,
            decision.action,
            submission.uid,
            decision.asked,
            decision.got or "-",
            decision.reason or "-",
        )
        submitted = datetime.fromtimestamp(self._clock(), UTC)
        keep = task is not None and task.held

        def row() -> models.Decision:
            return models.Decision(
                id=decision_id,
                created_at=submitted,
                user_id=submission.uid,
                user_name=submission.user_name,
                job_name=submission.name,
                partition=submission.partition,
                script_name=policy.script_name(submission),
                fingerprint=understood.fingerprint or None,
                asked=decision.asked,
                got=decision.got,
                action=decision.action,
                state=decision.state,
                reason=decision.reason,
                estimate_id=known.estimate_id if known and decision.action != "defer" else None,
                held_s=None if decision.action == "defer" else 0.0,
                needed_bytes=decision.share.needed_bytes if decision.share else None,
                promised_bytes=decision.share.promised_bytes if decision.share else None,
                limit_bytes=decision.share.limit_bytes if decision.share else None,
                request=_stored(submission) if keep else None,
            )

        self._writer.put_decision(row)

    def knows_slurm(self) -> bool:
        """Whether slurmctld has been asked what decisions need; until then jobs pass."""
        return self._site.in_slurm is not None

    def waiting_traces(self) -> int:
        """How many scripts wait for their trace, or are being traced."""
        return self.traces.waiting() if self.traces else 0

    # ---- the job has come to be

    def _found(self, decision_id: str, task: Deferred | None, job: Job | None) -> None:
        if job is None:
            log.info("decision=%s has no job: refused by Slurm, or only a test", decision_id)
            if task is not None and task.held:
                self._update(decision_id, state="failed", reason="Slurm has no such job", request=None)
            return
        self._update(decision_id, job_id=job.id)
        if task is None or self.traces is None:
            return
        if task.held and job.state in _ENDED:
            self._update(decision_id, state="expired", reason="the job ended before its trace", request=None)
            return
        self.traces.add(replace(task, job_id=job.id))

    def resume(self, store: Store) -> None:
        """Takes up the deferred jobs of an earlier life of the service. May block on Slurm."""
        for row in store.decisions_in_state(_UNFINISHED):
            if row.request is None:
                reason = "not taken up again: what holds credentials is not stored"
                self._update(row.id, state="failed", reason=reason)
                continue
            try:
                submission = Submission.model_validate(row.request)
                job = policy.candidate(submission, self._site)
            except (ValidationError, Unsupported) as error:
                reason = str(error).splitlines()[0]
                log.warning("decision=%s cannot be taken up again: %s", row.id, reason)
                self._update(row.id, state="failed", reason=f"not taken up again: {reason}", request=None)
                continue
            task = Deferred(
                decision_id=row.id,
                fingerprint=row.fingerprint or "",
                submission=submission,
                gpu=job.partition.gpu,
                job=job,
                submitted=row.created_at.timestamp(),
                held=True,
            )
            log.info("decision=%s taken up again", row.id)
            self._finder.expect(row.id, submission.uid, partial(self._found, row.id, task))

    # ---- traced

    def _trace_began(self, task: Task) -> None:
        log.info("decision=%s is traced", task.decision_id)
        if isinstance(task, Deferred) and task.held:
            self._update(task.decision_id, state="tracing")

    def _trace_ended(self, tasks: Sequence[Task], result: Result) -> None:
        known, row = _outcome(tasks[0], result)
        self._known.put(tasks[0].fingerprint, known)
        self._writer.put(lambda store: store.add_estimate(row))
        peak = known.estimate.peak_bytes if known.estimate else None
        log.info(
            "decision=%s was traced: peak=%s reason=%s", tasks[0].decision_id, peak, known.failure or "-"
        )
        for task in tasks:
            if isinstance(task, Deferred):
                (self._settle if task.held else self._note)(task, known)

    def _note(self, task: Deferred, known: Known) -> None:
        """Lets the history tell what a job that was not held would have got."""
        part = self._share(task, known)
        changes = {"reason": policy.observed(part)} if task.job.partition.observe else {}
        self._update(task.decision_id, estimate_id=known.estimate_id, **_sizes(part), **changes)

    def _settle(self, task: Deferred, known: Known) -> None:
        """Gives a job that waits its share of a GPU, or all of it, and lets it start."""
        whole = task.job.partition.shards_per_gpu
        part = self._share(task, known)
        state: policy.State = "released"
        reason: str | None = None
        got = whole
        if isinstance(part, str):
            reason = part
        else:
            state, got = "applied", part.shards
        problem = self._release(task, got)
        if problem is not None and state == "applied":
            state, reason, got = "released", problem, whole
            problem = self._release(task, whole)
        if problem is not None:
            state, reason, got = *self._what_became_of(task, problem), whole
        held_s = self._clock() - task.submitted
        if state == "expired":
            held_s = min(held_s, self._settings.defer.budget_s)
        log.info(
            "decision=%s job=%s state=%s got=shard:%d held_s=%.1f reason=%s",
            task.decision_id,
            task.job_id,
            state,
            got,
            held_s,
            reason or "-",
        )
        self._update(
            task.decision_id,
            state=state,
            reason=reason,
            got=f"shard:{got}",
            estimate_id=known.estimate_id,
            held_s=held_s,
            request=None,
            **(_sizes(part) if state == "applied" else {}),
        )

    def _share(self, task: Deferred, known: Known) -> Share | str:
        return policy.share(
            known,
            task.job,
            task.submission,
            self._settings,
            self._margins(),
            task.fingerprint,
            at_submission=False,
        )

    def _release(self, task: Deferred, shards: int) -> str | None:
        """What went wrong, or None."""
        assert task.job_id is not None  # noqa: S101 - only jobs that were found are traced
        got = f"shard:{shards}"
        comment = admin_comment(task.decision_id, task.job.request.asked, got)
        try:
            self._slurm.release(task.job_id, got, task.submission.begin_time, comment)
        except SlurmError as error:
            return str(error)
        return None

    def _what_became_of(self, task: Deferred, problem: str) -> tuple[policy.State, str]:
        """Why a job could not be released. If it still waits, Slurm starts it when its time is up."""
        try:
            job = self._slurm.job(task.job_id) if task.job_id is not None else None
        except SlurmError:
            return "failed", problem
        if job is None or job.state in _ENDED:
            return "expired", "the job ended before its trace was done"
        if not job.pending:
            return "expired", "the job started before its trace was done"
        return "failed", problem

    def _update(self, decision_id: str, **changes: Any) -> None:
        self._writer.put(lambda store: store.update_decision(decision_id, **changes))


def load_known(store: Store, known: KnownResults, now: float) -> None:
    """Fills `known` with what earlier lives of the service found out; `now` is unix time."""
    for row in reversed(store.latest_estimates()):
        try:
            result = _remembered(row)
        except ValidationError:  # written by another version
            continue
        if result.failure is None or now - row.created_at.timestamp() < FAILURE_LASTS_S:
            known.put(row.fingerprint, result)


def _sizes(part: Share | str) -> dict[str, int]:
    """What a job's share was made for, as columns of its decision."""
    if isinstance(part, str):
        return {}
    return {"needed_bytes": part.needed_bytes, "promised_bytes": part.promised_bytes}


def _remembered(row: models.Estimate) -> Known:
    if row.status == "failed":
        failure = Failure.model_validate(row.detail)
        return Known(None, failure.reason, tuple(failure.inputs), row.id)
    estimate = Estimated.model_validate(row.detail)
    return Known(estimate, None, tuple(estimate.inputs), row.id)


def _outcome(task: Task, result: Result) -> tuple[Known, models.Estimate]:
    """What is remembered and stored of a result: nothing that looks like a credential of the job."""
    hidden = _secrets(task.submission)
    if not isinstance(result, Traced):
        reason = secrets.hide(re.sub(r"\s+", " ", str(result)), hidden)
        failure = Failure(status="failed", reason=reason, inputs=list(result.inputs))
        row = models.Estimate(
            fingerprint=task.fingerprint, gpu=task.gpu, status="failed", detail=failure.model_dump()
        )
        return Known(None, reason, result.inputs, row.id), row
    estimate = result.estimate
    row = models.Estimate(
        fingerprint=task.fingerprint,
        gpu=estimate.gpu,
        status=estimate.status,
        peak_bytes=estimate.peak_bytes,
        reserved_peak_bytes=estimate.reserved_peak_bytes,
        recommended_bytes=estimate.recommended_bytes,
        shards=estimate.shards,
        detail=secrets.hide_in(result.detail, hidden),
        inputs=[item.model_dump() for item in estimate.inputs],
    )
    return Known(estimate, None, tuple(estimate.inputs), row.id), row


def _secrets(submission: Submission) -> set[str]:
    return secrets.of_environment(submission.environment) | _written_secrets(submission)


def _written_secrets(submission: Submission) -> set[str]:
    return secrets.of_text(submission.script or "", " ".join(submission.argv))


def _stored(submission: Submission) -> dict[str, Any] | None:
    """What a trace after a restart needs, without credentials; None if they stand in the script itself."""
    if _written_secrets(submission):
        return None
    fields = submission.model_dump(exclude_defaults=True)
    fields["v"] = submission.v
    fields["environment"] = policy.storable_environment(submission.environment)
    return fields
