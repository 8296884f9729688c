"""What the program was doing at an event of its trace, in words."""

from __future__ import annotations

from bisect import bisect_right

from estimator.trace import Phase, Trace


def at(trace: Trace, event: int | None) -> str | None:
    """Such as "step 2, batch 64, backward" or "evaluation, batch 256, forward"; None if nothing is known."""
    if event is None or not trace.marks:
        return None
    mark = trace.marks[max(0, bisect_right([mark.event for mark in trace.marks], event) - 1)]
    if mark.phase is Phase.SETUP:
        return mark.phase.value
    words = ["evaluation" if mark.phase is Phase.EVALUATION else f"step {mark.step + 1}"]
    if mark.batch is not None:
        words.append(f"batch {mark.batch}")
    words.append("forward" if mark.phase is Phase.EVALUATION else mark.phase.value)
    return ", ".join(words)
