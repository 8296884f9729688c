"""PyTorch's memory history, the input of a replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum


class Action(IntEnum):
    """What an entry of PyTorch's memory history says (`TraceEntry::Action`)."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5  # expandable segments grow by this ...
    SEGMENT_UNMAP = 6  # ... and shrink by that
    OOM = 7


# plain numbers: comparing with the members of an enum would take a third of the time of a replay
ALLOC, FREE_REQUESTED, FREE_COMPLETED = (
    int(Action.ALLOC),
    int(Action.FREE_REQUESTED),
    int(Action.FREE_COMPLETED),
)
SEGMENT_ALLOC, SEGMENT_FREE = int(Action.SEGMENT_ALLOC), int(Action.SEGMENT_FREE)
SEGMENT_MAP, SEGMENT_UNMAP = int(Action.SEGMENT_MAP), int(Action.SEGMENT_UNMAP)


@dataclass(frozen=True, slots=True)
class History:
    """PyTorch's memory history: columns of one length; `action` holds `Action` codes (others are ignored).

    `size` is in bytes: as asked for in an `ALLOC`, as taken from the device in the `SEGMENT` actions.
    `pool` numbers the private pool (of CUDA graphs, `MemPool`) of each `ALLOC`, 0 for none; the column is
    empty where there are no private pools.
    """

    action: Sequence[int]
    address: Sequence[int]
    size: Sequence[int]
    stream: Sequence[int]
    pool: Sequence[int] = field(default=(), kw_only=True)

    def __len__(self) -> int:
        return len(self.action)

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """(action, address, size, stream) of each event."""
        return zip(self.action, self.address, self.size, self.stream, strict=True)


class ReplayError(ValueError):
    """The history contradicts itself: it frees what is not allocated, or allocates an address twice."""
