"""Two runs of a distributed job become one result, and what is missing is told."""

from __future__ import annotations

from estimator.trace import Columns, Mark, Phase, Trace
from estimator.trace_run import Traced, TraceFailed, _with_middle

COLUMNS = Columns(action=[], address=[], size=[], stream=[], stack=[])
MARKS = (Mark(event=0, phase=Phase.SETUP, step=0),)


def traced(*ranks: int, used: bool = True, failures: tuple[str, ...] = (), wall_s: float = 1.0) -> Traced:
    traces = tuple(
        Trace(
            format=1,
            pid=1,
            rank=rank,
            world_size=4,
            end="steps",
            events=COLUMNS if used else None,
            marks=MARKS if used else (),
        )
        for rank in ranks
    )
    return Traced(traces, failures, wall_s, 10)


def failing() -> Traced:
    raise TraceFailed("train.py line 3: KeyError: 2")


def test_the_middle_rank_is_added() -> None:
    both = _with_middle(traced(0), lambda: traced(2, failures=("the end failed",), wall_s=2.0), 4)
    assert [one.rank for one in both.traces] == [0, 2]
    assert both.failures == ("the end failed",)
    assert both.wall_s == 3.0


def test_a_middle_rank_that_fails_or_does_nothing_is_told() -> None:
    told = "of 4 ranks only the first was traced: rank 2 alone"
    (failed,) = _with_middle(traced(0), failing, 4).failures
    assert failed == f"{told} failed: train.py line 3: KeyError: 2"
    for nothing in (traced(), traced(0), traced(2, used=False)):
        left = _with_middle(traced(0), lambda nothing=nothing: nothing, 4)
        assert left.failures == (f"{told} did not use the GPU",)
        assert [one.rank for one in left.traces] == [0]
