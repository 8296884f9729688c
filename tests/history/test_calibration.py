"""Margins learned from history: the risk they promise, how they recover, and laws that hold for all of them."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from history.calibration import (
    WINDOW,
    Calibration,
    Job,
    Observation,
    Prior,
    least_scores,
    quantile,
    unit,
)

MIB, GIB = 1024**2, 1024**3
PRIOR = Prior(exact=0.03, bounded=0.12, least_bytes=256 * MIB)
RISK = 0.01


def calibration(risk: float = RISK) -> Calibration:
    return Calibration(risk, PRIOR)


def in_band(misses: int, jobs: int, risk: float, deviations: float = 2.576) -> bool:
    """Whether so many misses are what the risk lets expect (99 % of all binomial draws)."""
    return abs(misses - jobs * risk) <= deviations * math.sqrt(jobs * risk * (1 - risk))


def drifting_mix(seed: int, jobs: int, bias: Callable[[float], float]) -> Iterator[tuple[Job, int]]:
    """Jobs and what they really need. `bias`: the error of all estimates at a time in [0, 1].

    Most jobs are runs of scripts seen lately, some are new; sizes grow, errors get wider and swing with
    time, those of bounded estimates are three times as wide; a part of each error does not grow with the job.
    """
    draw = random.Random(seed)
    scripts: list[tuple[int, float, str]] = []
    for number in range(jobs):
        time = number / jobs
        if not scripts or draw.random() < 0.4:
            size = int(GIB * math.exp(draw.gauss(1.5 + time, 1)))
            wrong = draw.gauss(0.05 * math.sin(8 * time), 0.02 + 0.03 * time)
            scripts.append((size, wrong, f"script {number}"))
        size, wrong, name = draw.choice(scripts[-200:])
        status = "bounded" if int(name.split()[1]) % 2 else "exact"
        wrong = wrong * (3 if status == "bounded" else 1) + bias(time)
        needed = int(size * (1 + wrong + draw.gauss(0, 0.004)) + draw.gauss(0, 60 * MIB))
        yield Job("a100", status, size, name), max(needed, 1)


def suddenly(time: float) -> float:
    """All estimates become 15 % too low half-way."""
    return 0.15 if time >= 0.5 else 0.0


def simulate(jobs: Iterator[tuple[Job, int]], risk: float = RISK, delay: int = 0) -> list[bool]:
    """For each job whose bound was learned, whether it needed more; it ends when `delay` more have begun."""
    learning = calibration(risk)
    missed = []
    running: deque[Observation] = deque()
    for job, needed in jobs:
        bound = learning.bound(job)
        if bound.learned:
            missed.append(needed > bound.bytes)
        running.append(Observation(job, needed, promised_bytes=bound.bytes))
        if len(running) > delay:
            learning.learn(running.popleft())
    return missed


@pytest.mark.parametrize(("risk", "delay"), [(0.01, 0), (0.05, 0), (0.01, 100)])
def test_over_ten_thousand_jobs_of_a_drifting_mix_the_risk_is_kept(risk: float, delay: int) -> None:
    missed = simulate(drifting_mix(1, 10_000, lambda time: 0.0), risk, delay)
    assert len(missed) > 9000
    assert in_band(sum(missed), len(missed), risk), sum(missed) / len(missed)


def test_a_fixed_margin_would_not_have_kept_it() -> None:
    jobs = drifting_mix(1, 10_000, lambda time: 0.0)
    missed = [needed > job.peak_bytes + PRIOR.margin_bytes(job) for job, needed in jobs]
    assert sum(missed) > 10 * RISK * len(missed)


def test_an_estimator_that_becomes_too_low_is_recovered_from() -> None:
    missed = simulate(drifting_mix(2, 10_000, suddenly))
    assert in_band(sum(missed), len(missed), RISK), sum(missed) / len(missed)
    half = len(missed) // 2
    assert sum(missed[half : half + 300]) <= 30  # far from all, though each of them was estimated too low
    assert in_band(sum(missed[half + 300 :]), len(missed) - half - 300, RISK)


def test_only_jobs_that_were_decided_on_before_anybody_could_know_are_beyond_the_risk() -> None:
    delay = 100
    missed = simulate(drifting_mix(2, 10_000, suddenly), delay=delay)
    change = len(missed) - 5000
    unforeseen = sum(missed[change : change + delay + 1])
    assert sum(missed) - unforeseen <= 0.01 * len(missed)
    assert unforeseen > 2.576 * math.sqrt(0.01 * len(missed))  # they alone are more than chance


def test_an_estimator_that_becomes_too_high_costs_no_memory_for_ever() -> None:
    learning = calibration()
    draw = random.Random(3)

    def run(jobs: int, error: float) -> float:
        for _ in range(jobs):
            name = f"{draw.random()}"
            learning.learn(
                Observation(Job("a100", "exact", 10 * GIB, name), int(10 * GIB * draw.gauss(1 + error, 0.01)))
            )
        return learning.bound(Job("a100", "exact", 10 * GIB, "next")).bytes / (10 * GIB)

    wide = run(WINDOW, 0.1)
    assert 1.1 < wide < 1.2
    assert 1 <= run(WINDOW, -0.1) < 1.01  # what was learned before has left the window


def test_where_little_is_known_the_prior_holds() -> None:
    learning = calibration()
    job = Job("a100", "exact", 10 * GIB, "next")
    assert learning.bound(job).bytes == 10 * GIB + PRIOR.margin_bytes(job)
    for number in range(least_scores(RISK) - 1):
        learning.learn(Observation(Job("a100", "exact", 10 * GIB, f"{number}"), 10 * GIB))
    bound = learning.bound(job)
    assert (bound.learned, bound.bytes) == (False, 10 * GIB + PRIOR.margin_bytes(job))
    learning.learn(Observation(Job("a100", "exact", 10 * GIB, "last"), 10 * GIB))
    bound = learning.bound(job)
    assert (bound.learned, bound.bytes) == (True, 10 * GIB)
    for other in (Job("h100", "exact", 10 * GIB), Job("a100", "bounded", 10 * GIB)):
        assert learning.bound(other).bytes == 10 * GIB + PRIOR.margin_bytes(other)


def test_few_observations_can_widen_the_prior_but_not_narrow_it() -> None:
    learning = calibration()
    learning.learn(Observation(Job("a100", "exact", 10 * GIB, "one"), 12 * GIB))
    bound = learning.bound(Job("a100", "exact", 10 * GIB, "two"))
    assert not bound.learned and 12 * GIB <= bound.bytes <= 12 * GIB + 1
    larger = learning.bound(Job("a100", "exact", 20 * GIB, "three")).bytes - 20 * GIB
    assert 2 * GIB < larger < 4 * GIB  # errors grow with the estimate, but a part of them does not


def test_the_history_of_a_script_narrows_its_margin() -> None:
    draw = random.Random(4)
    learning = calibration()
    errors = {f"script {number}": draw.gauss(0, 0.1) for number in range(150)}
    for _ in range(3):
        for name, error in errors.items():
            needed = int(10 * GIB * (1 + error + draw.gauss(0, 0.002)))
            learning.learn(Observation(Job("a100", "exact", 10 * GIB, name), needed))
    new = learning.bound(Job("a100", "exact", 10 * GIB, "unknown"))
    assert new.learned and new.bytes > 11.5 * GIB
    for name, error in errors.items():
        seen = learning.bound(Job("a100", "exact", 10 * GIB, name))
        assert seen.learned
        assert 0.99 < seen.bytes / (10 * GIB * (1 + error)) < 1.02


def test_an_edited_script_of_the_same_user_is_known_by_its_name() -> None:
    learning = calibration()
    learning.learn(Observation(Job("a100", "exact", 10 * GIB, "first text", "1000:train.sh"), 13 * GIB))
    edited = learning.bound(Job("a100", "exact", 10 * GIB, "second text", "1000:train.sh"))
    assert edited.bytes >= 13 * GIB
    learning.learn(Observation(Job("a100", "exact", 10 * GIB, "second text", "1000:train.sh"), 10 * GIB))
    assert learning.bound(Job("a100", "exact", 10 * GIB, "second text", "1000:train.sh")).bytes < 11 * GIB


def test_what_a_job_needed_at_least_counts_only_where_it_is_more_than_the_bound() -> None:
    job = Job("a100", "exact", 10 * GIB, "f")
    learning = calibration()
    learning.learn(Observation(job, 5 * GIB, is_at_least=True))  # failed early
    assert learning.summaries() == []
    learning.learn(Observation(job, 12 * GIB, is_at_least=True))  # ran out of memory
    assert learning.bound(job).bytes >= 12 * GIB


def test_the_summary_tells_promises_and_whether_they_were_kept() -> None:
    learning = calibration(0.1)
    for number in range(40):
        job = Job("a100", "exact", 10 * GIB, f"{number}")
        learning.learn(Observation(job, 10 * GIB + number * MIB, False, 10 * GIB + 30 * MIB))
    (group,) = learning.summaries()
    assert (group.gpu, group.status, group.kind, group.scores) == ("a100", "exact", "new", 40)
    assert (group.promised, group.broken) == (40, 9)
    assert group.judged == 40 - least_scores(0.1)
    assert group.score is not None and group.score > 0


SCORES = st.lists(st.floats(-5, 5), min_size=1, max_size=50).map(sorted)
SIZES = st.integers(MIB, 100 * GIB)


@given(SCORES, st.floats(0.001, 0.9), st.floats(0.001, 0.9), st.floats(0, 10))
def test_a_smaller_risk_never_has_a_smaller_quantile(scores, one, other, slope):
    low, high = sorted((one, other))
    assert quantile(scores, low, slope) >= quantile(scores, high, slope)


@given(SCORES, st.floats(0.001, 0.9))
def test_no_more_than_the_risk_lies_above_the_quantile_where_there_are_enough(scores, risk):
    if len(scores) >= least_scores(risk):
        bound = quantile(scores, risk)
        assert sum(score > bound for score in scores) <= risk * (len(scores) + 1)


@given(SCORES, st.floats(0.01, 0.5), st.floats(-3, 3))
def test_the_quantile_moves_with_its_scores(scores, risk, shift):
    moved = quantile([score + shift for score in scores], risk)
    assert moved == pytest.approx(quantile(scores, risk) + shift)


@given(
    st.lists(st.tuples(SIZES, st.floats(0.2, 3), st.booleans(), st.sampled_from("abcdefgh")), max_size=60),
    SIZES,
    st.sampled_from([0.01, 0.05, 0.2]),
)
def test_bounds_keep_their_floor(history, size, risk):
    """At least the estimate for a new script; at least what its last runs needed for one that has run."""
    learning = calibration(risk)
    last: dict[str, list[tuple[int, int]]] = {}
    for estimated, factor, at_least, name in history:
        job = Job("a100", "exact", estimated, name)
        needed = int(estimated * factor)
        before = learning.bound(job).bytes
        learning.learn(Observation(job, needed, at_least))
        if not at_least or needed > before:
            last.setdefault(name, []).append((estimated, needed))
    assert learning.bound(Job("a100", "exact", size, "new")).bytes >= size
    for name, runs in last.items():
        for estimated, needed in runs[-8:]:
            assert learning.bound(Job("a100", "exact", estimated, name)).bytes >= needed
            score = (needed - estimated) / unit(estimated)
            grown = learning.bound(Job("a100", "exact", size, name)).bytes
            assert grown >= math.floor(size + score * unit(size)) - 1
