"""What is in use at the busiest moment of a replay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

BEFORE = -1  # the event of what was there before the history begins


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """A block in use: the event that allocated it, the recorded address, the bytes asked for and taken.

    `event` is `BEFORE` for a block of the initial state.
    """

    event: int
    address: int
    requested: int
    size: int


class Busiest:
    """The most bytes allocated so far, and the first event after which they were (None: none ever were).

    Memory is linear in the blocks that live at one time: of those freed only the ones in use then are kept.
    """

    __slots__ = ("_gone", "bytes", "event")

    def __init__(self, allocated: int = 0) -> None:
        self.bytes = allocated
        self.event: int | None = BEFORE if allocated else None
        self._gone: list[LiveBlock] = []  # in use at that event, and freed since

    def exceed(self, allocated: int, event: int) -> None:
        """More than ever before is allocated now, after this event."""
        self.bytes, self.event = allocated, event
        self._gone.clear()

    def includes(self, event: int) -> bool:
        """Whether what this event allocated, and is in use until now, was in use then."""
        return self.event is not None and event <= self.event

    def free(self, block: LiveBlock) -> None:
        """Takes note of a block that is no longer in use."""
        if self.includes(block.event):
            self._gone.append(block)

    def live(self, now: Iterable[LiveBlock]) -> tuple[LiveBlock, ...]:
        """The blocks that were in use then, by address; `now`: those in use."""
        kept = [*self._gone, *(block for block in now if self.includes(block.event))]
        return tuple(sorted(kept, key=lambda block: block.address))
