"""One row of the history out of a decision, its estimate and what was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from history.models import Decision, Estimate, MeasuredGpu, MeasuredJob
from history.wire import JobRecord


def decided_record(
    decision: Decision, estimate: Estimate | None, runs: Sequence[MeasuredJob] = ()
) -> JobRecord:
    """The row of a job that was decided on; `runs` as `measured_record`, or nothing yet."""
    measured = measured_record(runs) if runs else JobRecord()
    estimated = estimate.peak_bytes if estimate else None
    return measured.model_copy(
        update={
            "job_id": decision.job_id,
            "decision_id": decision.id,
            "submitted_at": decision.created_at,
            "user_id": decision.user_id,
            "user_name": decision.user_name,
            "job_name": decision.job_name,
            "partition": decision.partition,
            "script": decision.script_name,
            "asked": decision.asked,
            "got": decision.got,
            "action": decision.action,
            "state": decision.state,
            "reason": decision.reason,
            "held_s": decision.held_s,
            "gpu": measured.gpu or (estimate.gpu if estimate else None),
            "estimate_status": estimate.status if estimate else None,
            "estimated_peak_bytes": estimated,
            "recommended_bytes": estimate.recommended_bytes if estimate else None,
            "promised_bytes": decision.promised_bytes,
            "limit_bytes": decision.limit_bytes,
            "out_of_memory": decision.out_of_memory,
            "error": signed_error(estimated, measured.measured_peak_bytes),
        }
    )


def measured_record(runs: Sequence[MeasuredJob], user_name: str | None = None) -> JobRecord:
    """The row of a job that was only measured.

    Args:
        runs: at least one; one for each node, task and start of the job, earliest end first.
        user_name: the owner, if known.
    """
    last = runs[-1]
    gpus = [gpu for run in runs for gpu in run.gpus]
    greatest = _greatest(run.gpus for run in runs)
    return JobRecord.model_validate(
        {
            "job_id": last.job_id,
            "user_id": last.user_id,
            "user_name": user_name,
            "started_at": runs[0].started_at,
            "gpu": next((gpu.model for gpu in gpus if gpu.model), None),
            "measured_peak_bytes": greatest.peak_bytes if greatest else None,
            "measured_source": greatest.source if greatest else None,
            "shared": _any(gpu.shared for gpu in gpus),
            "node": last.node,
            "exit_code": last.exit_code,
            "problems": list(dict.fromkeys(problem for run in runs for problem in run.problems)),
        }
    )


def signed_error(estimated: int | None, measured: int | None) -> float | None:
    """(estimated - measured) / measured: above 0 where the estimate was too high, None where unknown."""
    return (estimated - measured) / measured if estimated is not None and measured else None


def _greatest(runs: Iterable[Sequence[MeasuredGpu]]) -> MeasuredGpu | None:
    """The GPU with the greatest peak; a run with a GPU of unknown peak tells nothing about it."""
    known = [gpu for run in runs if all(g.peak_bytes is not None for g in run) for gpu in run]
    return max(known, key=lambda gpu: gpu.peak_bytes or 0, default=None)


def _any(flags: Iterable[bool | None]) -> bool | None:
    """Whether one is true; None if that is not known."""
    known = list(flags)
    if True in known:
        return True
    return None if None in known or not known else False
