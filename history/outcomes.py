"""What a measured run says about the estimate that was made for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from history.calibration import Job, Observation, Status

LEAST_SAMPLES = 60
"""A peak that was only sampled is believed from so many samples on: PyTorch keeps what it has reserved."""

NEAR_LIMIT = 64 * 1024**2
"""Bytes: a job that came so near to its limit may have been kept from taking more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run that was measured on one GPU, and the decision and estimate that it belongs to; unknown is None.

    `estimated_gpu` and `measured_gpu` are names of GPU models; sizes are bytes. `needed_bytes`,
    `promised_bytes`, `limit_bytes` and `out_of_memory`: see `history.models.Decision`.
    """

    fingerprint: str | None
    user_id: int
    script_name: str | None
    estimated_gpu: str | None
    status: str
    estimated_bytes: int | None
    needed_bytes: int | None
    promised_bytes: int | None
    limit_bytes: int | None
    out_of_memory: bool | None
    measured_gpu: str | None
    peak_bytes: int | None
    source: str | None
    processes: int | None
    samples: int | None
    exit_code: int | None


def observation(outcome: Outcome, gpu: str) -> Observation | None:
    """What can be learned from a run on `gpu`, the model that it was estimated for; None: nothing."""
    estimated, peak = outcome.estimated_bytes, outcome.peak_bytes
    if not estimated or not peak or outcome.status not in ("exact", "bounded"):
        return None
    promised, limit = outcome.promised_bytes, outcome.limit_bytes
    is_at_least, ran_out = not _is_truth(outcome), _ran_out(outcome)
    escaped = limit is not None and peak > limit + NEAR_LIMIT
    if escaped:
        limit = None
    if outcome.needed_bytes is not None and outcome.needed_bytes < estimated:
        # made for less than its peak: only that it ran out, or stayed away from its limit, says something
        if ran_out:
            estimated = outcome.needed_bytes
        else:
            promised = None
            if not escaped and (limit is None or peak >= limit - NEAR_LIMIT):
                return None
    if limit is not None and ran_out:
        peak, is_at_least = max(peak, limit + 1), True
    elif limit is not None and peak >= limit - NEAR_LIMIT:
        is_at_least = True
    script = script_label(outcome.user_id, outcome.script_name)
    status: Status = "exact" if outcome.status == "exact" else "bounded"
    job = Job(gpu, status, estimated, outcome.fingerprint, script)
    return Observation(job, peak, is_at_least, promised, escaped)


def too_small(outcomes: Iterable[Outcome]) -> frozenset[str]:
    """The work (fingerprints) that ran out of memory and was not measured to its end since.

    What it needs is not known. `outcomes` are in the order in which they ended.
    """
    found: set[str] = set()
    for outcome in outcomes:
        if outcome.fingerprint and _ran_out(outcome):
            found.add(outcome.fingerprint)
        elif outcome.fingerprint and outcome.peak_bytes and _is_truth(outcome):
            found.discard(outcome.fingerprint)
    return frozenset(found)


def script_label(user_id: int, name: str | None) -> str | None:
    """What `calibration.Job` calls a script of a user; `name` is that of its file."""
    return f"{user_id}:{name}" if name else None


def _ran_out(outcome: Outcome) -> bool:
    """Whether it is this run that ran out of memory: another one, on a whole GPU, may have followed."""
    return bool(outcome.out_of_memory) and outcome.exit_code != 0


def _is_truth(outcome: Outcome) -> bool:
    """Whether the job came to its end and its peak was surely seen."""
    if outcome.exit_code != 0 or outcome.processes is None:
        return False
    return outcome.source != "sampling" or (outcome.samples or 0) >= LEAST_SAMPLES
