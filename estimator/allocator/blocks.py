"""Blocks, and the ordered sets of free ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimator.allocator.expandable import ExpandableSegment


class Block:
    """A piece of a segment; `prev` and `next` are its neighbours there, `order` ranks blocks of one size.

    `free`: it lies in its pool. Neither free nor allocated is a block that waits for another stream, and one
    of an expandable segment that no memory is mapped to. `handle` and `requested` (bytes) tell about an
    allocation.
    """

    __slots__ = (
        "address",
        "age_base",
        "free",
        "handle",
        "mapped",
        "next",
        "order",
        "pool",
        "prev",
        "requested",
        "segment",
        "size",
    )

    def __init__(
        self, address: int, size: int, order: int, pool: BlockPool, segment: ExpandableSegment | None = None
    ) -> None:
        self.address = address
        self.size = size
        self.order = order
        self.pool = pool
        self.segment = segment
        self.free = False
        self.mapped = True
        self.requested = 0
        self.handle = -1
        self.age_base = 0
        self.prev: Block | None = None
        self.next: Block | None = None

    @property
    def is_split(self) -> bool:
        """Whether the block is only a part of its segment."""
        return self.prev is not None or self.next is not None

    def insert_after(self, before: Block) -> None:
        """Becomes the next neighbour of `before` (`splice`)."""
        self.prev, self.next = before, before.next
        if before.next is not None:
            before.next.prev = self
        before.next = self


class PoolOwner:
    """Whose the pools are: the default one's (`id` None), or a private pool's (CUDA graphs, `MemPool`).

    `uses`: live graphs and scopes. `segments`: what was taken from the device and not yet given back
    (`cudaMalloc_count`). `searches`: how often free blocks were looked for in the large and the small pool,
    the clock of the garbage collection (`get_free_blocks_call_count`).
    """

    __slots__ = ("id", "pools", "searches", "segments", "uses")

    def __init__(self, id: int | None = None) -> None:
        self.id = id
        self.uses = 0
        self.segments = 0
        self.searches = [0, 0]
        self.pools: dict[tuple[int, bool], BlockPool] = {}

    def pool(self, stream: int, is_small: bool) -> BlockPool:
        """The pool of a stream and size class."""
        pool = self.pools.get((stream, is_small))
        if pool is None:
            pool = self.pools[stream, is_small] = BlockPool(is_small, stream, self)
        return pool


class BlockPool:
    """The free blocks of one stream and size class, by (size, order, address): the best fit comes first.

    `unmapped` are the parts of expandable segments without memory, by address. PyTorch keeps all streams in
    one set, ordered by stream first: that is the same.
    """

    __slots__ = ("blocks", "is_small", "owner", "stream", "unmapped")

    def __init__(self, is_small: bool, stream: int, owner: PoolOwner) -> None:
        self.is_small = is_small
        self.stream = stream
        self.owner = owner
        self.blocks: list[tuple[int, int, int, Block]] = []
        self.unmapped: list[tuple[int, Block]] = []

    def __iter__(self) -> Iterator[Block]:
        return (entry[3] for entry in self.blocks)

    def insert(self, block: Block) -> None:
        """Adds a free block (`insert_into_blocks`)."""
        block.free = True
        block.age_base = self.owner.searches[self.is_small]
        insort(self.blocks, (block.size, block.order, block.address, block))

    def erase(self, block: Block) -> None:
        """Takes a block out that is in the pool."""
        block.free = False
        del self.blocks[bisect_left(self.blocks, (block.size, block.order, block.address))]

    def insert_unmapped(self, block: Block) -> None:
        """Adds a block without memory."""
        insort(self.unmapped, (block.address, block))

    def erase_unmapped(self, block: Block) -> None:
        """Takes out a block without memory."""
        del self.unmapped[bisect_left(self.unmapped, (block.address,))]

    def age(self, block: Block) -> int:
        """How often this pool was searched since the block became free (`gc_count`)."""
        return self.owner.searches[self.is_small] - block.age_base
