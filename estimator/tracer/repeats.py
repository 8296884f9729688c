"""Steps that take and free the same addresses as others before: the history is as well told without them."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Tuple

Columns = Dict[str, List[int]]
LONGEST_PERIOD = 32  # steps
COMPARED = ("action", "address", "size", "stream")


def left_out(columns: Columns, ends: List[int]) -> List[Tuple[int, int]]:
    """Ranges of events that say again what the events before them say twice.

    `ends`: where each step ends (event), in order. Blocks often come back only every few steps, so that
    groups of steps repeat. What takes and frees the same addresses again leaves the allocator as it was.
    """
    kinds: Dict[Any, int] = {}
    steps = [
        kinds.setdefault(tuple(tuple(columns[name][begin:end]) for name in COMPARED), len(kinds))
        for begin, end in zip(ends, ends[1:])  # noqa: B905, RUF007 - newer than 3.9
    ]
    for period in range(1, min(LONGEST_PERIOD, len(steps) // 3) + 1):
        found = list(_repeated(steps, period))
        if found:
            return [(ends[first], ends[last]) for first, last in found]
    return []


def _repeated(steps: List[int], period: int) -> Iterator[Tuple[int, int]]:
    """Ranges of whole periods that are the third or a later one of a run."""
    begin = period  # of the run of steps that are as those one period before
    for step in range(period, len(steps) + 1):
        if step == len(steps) or steps[step] != steps[step - period]:
            more = (step - begin) // period - 1
            if more > 0:
                yield begin + period, begin + (1 + more) * period
            begin = step + 1


def without(columns: Columns, ranges: List[Tuple[int, int]]) -> Columns:
    """The columns without these ranges."""
    kept: Columns = {}
    for name, column in columns.items():
        parts, at = [], 0
        for begin, end in ranges:
            parts += column[at:begin]
            at = end
        kept[name] = parts + column[at:]
    return kept


def moved(position: int, ranges: List[Tuple[int, int]]) -> int:
    """Where an event is after that; one that was left out is where its range began."""
    return position - sum(min(position, end) - begin for begin, end in ranges if begin < position)
