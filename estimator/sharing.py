"""Several traced processes on one GPU: side by side they need the sum, one after another the largest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Run(Protocol):
    """A process that uses a GPU for a time (ns); `bytes` is its peak there."""

    @property
    def started_ns(self) -> int:
        """When its interpreter started, Unix time."""

    @property
    def ended_ns(self) -> int:
        """When its trace was written, Unix time."""

    @property
    def bytes(self) -> int:
        """The most that it reserved."""


R = TypeVar("R", bound="Run")


def together(runs: Sequence[R]) -> list[R]:
    """Those of the processes on one GPU that need the most at the same time, the largest first.

    Their peaks are added, for nothing says that they do not come at the same moment. A process whose times
    are not known (0) runs with no other.
    """
    sets = [[other for other in runs if other is one or _runs_at(other, one)] for one in runs]
    largest = max(sets, key=lambda chosen: sum(run.bytes for run in chosen))
    return sorted(largest, key=lambda run: -run.bytes)


def _runs_at(other: Run, one: Run) -> bool:
    """Whether `other` runs when `one` starts; the most are running together at some process's start."""
    return other.started_ns <= one.started_ns < other.ended_ns
