"""What the allocator holds at one moment: segments, and the blocks in them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Of a block, in the words of PyTorch's snapshots."""

    ALLOCATED = "active_allocated"
    AWAITING_FREE = "active_awaiting_free"
    FREE = "inactive"


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A block; bytes. `requested` is 0 in a free one."""

    address: int
    size: int
    requested: int
    state: State


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """A segment, or a mapped range of an expandable one, and its blocks, which fill it in order.

    `pool` numbers the private pool it belongs to, 0 for none.
    """

    address: int
    size: int
    stream: int
    is_small: bool
    is_expandable: bool
    blocks: tuple[HeldBlock, ...]
    pool: int = 0
