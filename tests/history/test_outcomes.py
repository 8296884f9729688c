"""Which measured runs say something about an estimate, and what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from history.calibration import Job, Observation
from history.outcomes import LEAST_SAMPLES, NEAR_LIMIT, Outcome, observation, too_small

GIB = 1024**3
RUN = Outcome(
    fingerprint="f",
    user_id=1000,
    script_name="train.sh",
    estimated_gpu="NVIDIA A100-SXM4-80GB",
    status="exact",
    estimated_bytes=10 * GIB,
    needed_bytes=10 * GIB,
    promised_bytes=11 * GIB,
    limit_bytes=None,
    out_of_memory=None,
    measured_gpu="NVIDIA A100-SXM4-80GB",
    peak_bytes=9 * GIB,
    source="both",
    processes=1,
    samples=5,
    exit_code=0,
)
JOB = Job("a100", "exact", 10 * GIB, "f", "1000:train.sh")


def of(**changes: Any) -> Observation | None:
    return observation(replace(RUN, **changes), "a100")


def test_a_job_that_came_to_its_end_and_was_watched_tells_what_it_needed() -> None:
    assert of() == Observation(JOB, 9 * GIB, False, 11 * GIB)
    assert of(promised_bytes=None, needed_bytes=None) == Observation(JOB, 9 * GIB)


@pytest.mark.parametrize(
    "changes",
    [
        {"exit_code": 256},
        {"exit_code": 15},
        {"exit_code": None},
        {"source": "sampling", "samples": LEAST_SAMPLES - 1},
        {"source": "sampling", "samples": None},
        {"processes": None},
        {"out_of_memory": True, "exit_code": 256},
        {"limit_bytes": 9 * GIB + NEAR_LIMIT},
    ],
)
def test_what_failed_was_held_or_not_watched_well_is_known_at_least(changes: dict[str, Any]) -> None:
    assert of(**changes) == Observation(JOB, 9 * GIB, True, 11 * GIB)


def test_a_long_job_that_was_sampled_is_believed() -> None:
    assert of(source="sampling", samples=LEAST_SAMPLES) == of()


@pytest.mark.parametrize(
    "changes",
    [
        {"peak_bytes": None},
        {"peak_bytes": 0},
        {"estimated_bytes": None},
        {"status": "failed"},
        {"needed_bytes": 6 * GIB, "promised_bytes": 7 * GIB, "limit_bytes": 9 * GIB},
        {"needed_bytes": 6 * GIB, "promised_bytes": 7 * GIB},
    ],
)
def test_what_is_unknown_or_was_held_to_less_than_its_peak_says_nothing(changes: dict[str, Any]) -> None:
    assert of(**changes) is None


def test_a_job_that_ran_out_under_its_limit_needed_more_than_that() -> None:
    assert of(limit_bytes=12 * GIB, out_of_memory=True, exit_code=256) == Observation(
        JOB, 12 * GIB + 1, True, 11 * GIB
    )
    least = of(
        needed_bytes=6 * GIB, promised_bytes=7 * GIB, limit_bytes=9 * GIB, out_of_memory=True, exit_code=256
    )
    assert least == Observation(replace(JOB, peak_bytes=6 * GIB), 9 * GIB + 1, True, 7 * GIB)


def test_a_job_that_held_more_than_its_limit_has_escaped_it() -> None:
    assert of(limit_bytes=8 * GIB) == Observation(JOB, 9 * GIB, False, 11 * GIB, escaped=True)
    least = of(needed_bytes=6 * GIB, promised_bytes=7 * GIB, limit_bytes=8 * GIB)
    assert least == Observation(JOB, 9 * GIB, escaped=True)  # its peak is the true one


def test_a_job_held_to_less_that_stayed_away_from_its_limit_tells_its_peak() -> None:
    assert of(needed_bytes=6 * GIB, promised_bytes=7 * GIB, limit_bytes=10 * GIB) == Observation(JOB, 9 * GIB)


def test_a_run_on_a_whole_gpu_after_the_memory_ran_out_counts_as_any_other() -> None:
    assert of(out_of_memory=True) == of()
    assert of(out_of_memory=True, needed_bytes=6 * GIB) == of(needed_bytes=6 * GIB)


def test_work_that_ran_out_of_memory_is_unknown_until_a_run_tells_what_it_needs() -> None:
    ran_out = replace(RUN, out_of_memory=True, exit_code=256, peak_bytes=None)
    other = replace(ran_out, fingerprint="other")
    assert too_small([RUN, ran_out, other]) == {"f", "other"}
    assert too_small([ran_out, other, replace(RUN, out_of_memory=True)]) == {"other"}
    for tells_nothing in ({"exit_code": 256}, {"exit_code": 15}, {"peak_bytes": None}, {"processes": None}):
        assert too_small([ran_out, replace(RUN, **tells_nothing)]) == {"f"}
