"""Replay of PyTorch's native caching allocator: how much GPU memory a history of allocations reserves.

Written to be read beside `c10/cuda/CUDACachingAllocator.cpp` (PyTorch 2.x), in its terms. A *segment* is what
one `cudaMalloc` returned; it is cut into *blocks*; *reserved* bytes are those of all segments, *allocated*
bytes those of the blocks in use, rounding and unsplit rest included. Sizes are bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from estimator.held import HeldSegment, State

MIB = 1024**2

# The names that the constants have in CUDACachingAllocator.cpp are kMinBlockSize, kSmallSize and so on.
MIN_BLOCK_SIZE = 512  # every block is a multiple of this
SMALL_SIZE = 1 * MIB  # the largest request that the small pool serves
SMALL_BUFFER = 2 * MIB  # segments of the small pool
LARGE_BUFFER = 20 * MIB  # segments for requests above SMALL_SIZE and below MIN_LARGE_ALLOC
MIN_LARGE_ALLOC = 10 * MIB  # from here on a segment is as large as its request ...
ROUND_LARGE = 2 * MIB  # ... rounded up to this

UNLIMITED = 1 << 62
BEFORE = -1  # the event of what was there before the history begins


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


@dataclass(frozen=True, slots=True)
class History:
    """PyTorch's memory history: columns of one length; `action` holds `Action` codes (others are ignored).

    `size` is in bytes: as asked for in an `ALLOC`, as taken from the device in the `SEGMENT` actions.
    """

    action: Sequence[int]
    address: Sequence[int]
    size: Sequence[int]
    stream: Sequence[int]

    def __len__(self) -> int:
        return len(self.action)


class ReplayError(ValueError):
    """The history contradicts itself: it frees what is not allocated, or allocates an address twice."""


class OutOfMemoryError(Exception):
    """A segment was refused although everything cached had been given back."""


@dataclass(frozen=True, slots=True)
class AllocatorConfig:
    """Rules of the allocator under its default settings.

    `oldest_segment_first`: which of free blocks of one size is taken, the one in the oldest segment (since
    pytorch/pytorch#183591, 2026) or the lowest in address (before).

    `PYTORCH_CUDA_ALLOC_CONF` changes exactly the answers of the methods (`roundup_power2_divisions` the
    first, `max_split_size_mb` the last), so a subclass is where such an option goes.
    """

    oldest_segment_first: bool = True

    def round_size(self, size: int) -> int:
        """Bytes of the block that a request of `size` bytes gets."""
        if size < MIN_BLOCK_SIZE:
            return MIN_BLOCK_SIZE
        return -(-size // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE

    def allocation_size(self, size: int) -> int:
        """Bytes of the segment that is allocated when no cached block serves a block of `size` bytes."""
        if size <= SMALL_SIZE:
            return SMALL_BUFFER
        if size < MIN_LARGE_ALLOC:
            return LARGE_BUFFER
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    def should_split(self, rest: int, small: bool) -> bool:
        """Whether `rest` bytes behind the wanted ones become a block of their own."""
        return rest >= MIN_BLOCK_SIZE if small else rest > SMALL_SIZE


DEFAULT_CONFIG = AllocatorConfig()
LOWEST_ADDRESS_FIRST = AllocatorConfig(oldest_segment_first=False)


class Block:
    """A piece of a segment; `prev` and `next` are its neighbours there, `order` ranks blocks of one size."""

    __slots__ = ("active", "address", "next", "order", "pool", "prev", "size")

    def __init__(self, address: int, size: int, order: int, pool: BlockPool) -> None:
        self.address = address
        self.size = size
        self.order = order
        self.pool = pool
        self.active = False  # in use, or freed and still waiting for another stream
        self.prev: Block | None = None
        self.next: Block | None = None

    @property
    def is_split(self) -> bool:
        """Whether the block is only a part of its segment."""
        return self.prev is not None or self.next is not None


class BlockPool:
    """The free blocks of one stream and size class, by (size, order, address): the best fit comes first."""

    __slots__ = ("_blocks", "is_small")

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self._blocks: list[tuple[int, int, int, Block]] = []

    def __iter__(self) -> Iterator[Block]:
        return (entry[3] for entry in self._blocks)

    def insert(self, block: Block) -> None:
        """Adds a free block."""
        insort(self._blocks, (block.size, block.order, block.address, block))

    def erase(self, block: Block) -> None:
        """Takes a block out that is in the pool."""
        del self._blocks[bisect_left(self._blocks, (block.size, block.order, block.address))]

    def pop_best_fit(self, size: int) -> Block | None:
        """Takes out the first of the smallest blocks of at least `size` bytes."""
        at = bisect_left(self._blocks, (size,))
        return self._blocks.pop(at)[3] if at < len(self._blocks) else None

    def pop_unsplit(self) -> list[Block]:
        """Takes out all blocks that are whole segments."""
        whole = [block for block in self if not block.is_split]
        self._blocks = [entry for entry in self._blocks if entry[3].is_split]
        return whole


class AddressSpace:
    """Where segments lie. The order of their addresses decides between free blocks of one size."""

    BASE = 0x7F00_0000_0000

    def __init__(self) -> None:
        self._segments: list[tuple[int, int]] = []  # (first address, end), ordered

    def place(self, size: int, wanted: int | None) -> int:
        """An address for a segment: the wanted one if nothing lies there, else the first gap it fits in."""
        if wanted is None or not self._is_free(wanted, size):
            wanted = self._first_fit(size)
        insort(self._segments, (wanted, wanted + size))
        return wanted

    def remove(self, address: int) -> None:
        """Forgets the segment that begins at `address`."""
        del self._segments[bisect_left(self._segments, (address,))]

    def _is_free(self, address: int, size: int) -> bool:
        at = bisect_left(self._segments, (address,))
        before_ends = self._segments[at - 1][1] if at else 0
        after_begins = self._segments[at][0] if at < len(self._segments) else UNLIMITED
        return before_ends <= address and address + size <= after_begins

    def _first_fit(self, size: int) -> int:
        candidate = self.BASE
        for begin, end in self._segments:
            if begin - candidate >= size:
                break
            candidate = max(candidate, end)
        return candidate


class Allocator:
    """The caching allocator on one device. The caller names each allocation by a `handle` of its choice."""

    def __init__(self, capacity: int = UNLIMITED, config: AllocatorConfig = DEFAULT_CONFIG) -> None:
        """`capacity`: bytes that all segments together may have."""
        self.capacity = capacity
        self.config = config
        self.allocated = 0
        self.reserved = 0
        self.retries = 0
        self.live: dict[int, Block] = {}  # by handle
        self.awaiting_free: dict[int, Block] = {}  # by handle; freed, but in use on another stream
        self._pools: dict[tuple[int, bool], BlockPool] = {}
        self._addresses = AddressSpace()
        self._segments = 0  # allocated so far

    def malloc(self, handle: int, size: int, stream: int = 0, segment_address: int | None = None) -> Block:
        """Allocates `size` bytes for `stream`; a new segment is put at `segment_address` if that is free.

        Raises:
            OutOfMemoryError: as PyTorch would, after freeing all cached segments and trying again.
        """
        size = self.config.round_size(size)
        pool = self._get_pool(stream, size <= SMALL_SIZE)
        block = pool.pop_best_fit(size) or self._allocate_segment(pool, size, segment_address)
        if self.config.should_split(block.size - size, pool.is_small):
            self._split(block, size)
        block.active = True
        self.live[handle] = block
        self.allocated += block.size
        return block

    def free(self, handle: int) -> None:
        """Frees an allocation; its block can be used again once `complete_free` says so."""
        block = self.live.pop(handle)
        self.allocated -= block.size
        self.awaiting_free[handle] = block

    def complete_free(self, handle: int) -> None:
        """All streams are done with a freed block. No effect if a lack of memory forced that earlier."""
        block = self.awaiting_free.pop(handle, None)
        if block is not None:
            self._free_block(block)

    def empty_cache(self) -> None:
        """Gives all segments back that are not in use (`torch.cuda.empty_cache`)."""
        for handle in list(self.awaiting_free):
            self.complete_free(handle)
        for pool in self._pools.values():
            for block in pool.pop_unsplit():
                self._addresses.remove(block.address)
                self.reserved -= block.size

    def adopt(self, segment: HeldSegment) -> None:
        """Takes a segment over with its blocks; those in use get their address as handle.

        What is adopted is older than all that follows, in the order in which it is adopted.

        Raises:
            ReplayError: another segment lies there.
        """
        if self._addresses.place(segment.size, segment.address) != segment.address:
            raise ReplayError("two segments lie at one address")
        self.reserved += segment.size
        self._segments += 1
        order = self._segments if self.config.oldest_segment_first else 0
        pool = self._get_pool(segment.stream, segment.is_small)
        before: Block | None = None
        for held in segment.blocks:
            block = Block(held.address, held.size, order, pool)
            block.prev = before
            if before is not None:
                before.next = block
            before = block
            block.active = held.state is not State.FREE
            if held.state is State.ALLOCATED:
                self.live[block.address] = block
                self.allocated += block.size
            elif held.state is State.AWAITING_FREE:
                self.awaiting_free[block.address] = block
        block_or_none = before
        while block_or_none is not None:  # linked now, which decides what is a whole segment
            if not block_or_none.active:
                pool.insert(block_or_none)
            block_or_none = block_or_none.prev

    def pools(self) -> list[BlockPool]:
        """The pools of free blocks, one for each stream and size class that was used."""
        return list(self._pools.values())

    def _get_pool(self, stream: int, is_small: bool) -> BlockPool:
        pool = self._pools.get((stream, is_small))
        if pool is None:
            pool = self._pools[stream, is_small] = BlockPool(is_small)
        return pool

    def _allocate_segment(self, pool: BlockPool, size: int, address: int | None) -> Block:
        segment_size = self.config.allocation_size(size)
        if self.reserved + segment_size > self.capacity:
            self.retries += 1
            self.empty_cache()
            if self.reserved + segment_size > self.capacity:
                raise OutOfMemoryError
        self.reserved += segment_size
        self._segments += 1
        order = self._segments if self.config.oldest_segment_first else 0
        return Block(self._addresses.place(segment_size, address), segment_size, order, pool)

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.order, block.pool)
        rest.prev, rest.next = block, block.next
        if rest.next is not None:
            rest.next.prev = rest
        block.next = rest
        block.size = size
        block.pool.insert(rest)

    def _free_block(self, block: Block) -> None:
        block.active = False
        pool = block.pool
        before, after = block.prev, block.next
        if before is not None and not before.active:
            pool.erase(before)
            block.address = before.address
            block.size += before.size
            block.prev = before.prev
            if block.prev is not None:
                block.prev.next = block
        if after is not None and not after.active:
            pool.erase(after)
            block.size += after.size
            block.next = after.next
            if block.next is not None:
                block.next.prev = block
        pool.insert(block)


@dataclass(frozen=True, slots=True)
class Segment:
    """One `cudaMalloc`: the event that needed it and its bytes."""

    event: int
    size: int


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """A block in use: the event that allocated it, the recorded address, the bytes asked for and taken.

    `event` is `BEFORE` for a block of the initial state.
    """

    event: int
    address: int
    requested: int
    size: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Where a replay ran out of memory: the event, the bytes asked for, and what was held at that moment."""

    event: int
    requested: int
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What the allocator did; peaks in bytes.

    `peak_event` is the first event after which `reserved_peak` was held, `busiest_event` the one after which
    `allocated_peak` was (None: nothing was allocated), and `live` the blocks in use after the latter, ordered
    by address: they sum to `allocated_peak`. `retries` counts the times that cached segments had to be freed
    to get another one. After `oom` nothing was replayed.
    """

    allocated_peak: int
    reserved_peak: int
    peak_event: int | None
    busiest_event: int | None
    live: tuple[LiveBlock, ...]
    segments: tuple[Segment, ...]
    retries: int
    oom: OutOfMemory | None


def replay(
    history: History,
    capacity: int = UNLIMITED,
    config: AllocatorConfig = DEFAULT_CONFIG,
    initial: Sequence[HeldSegment] = (),
) -> Replay:
    """Replays a recorded history on a device whose allocator may reserve `capacity` bytes.

    `initial` is what the allocator held before the history begins.

    Of the recorded segments only two things are used: their addresses, where the replay needs a segment at
    the same event, so that equal blocks are chosen in the recorded order; and that segments were freed. The
    script must have asked for that (`torch.cuda.empty_cache`): the recording device never runs out of memory.

    Raises:
        ReplayError: the history contradicts itself.
    """
    allocator = Allocator(capacity, config)
    for segment in initial:
        allocator.adopt(segment)
    block_sizes: dict[int, int] = {}  # of each `ALLOC`, by event
    segments: list[Segment] = []
    reserved_peak, allocated_peak = allocator.reserved, allocator.allocated
    peak_event: int | None = BEFORE if reserved_peak else None
    busiest_event: int | None = BEFORE if allocated_peak else None
    oom: OutOfMemory | None = None
    segment_address: int | None = None  # recorded since the last allocation
    emptied = False  # in a row of freed segments, which is one `empty_cache`

    for event, (action, address, size, stream) in enumerate(_rows(history)):
        if action == _ALLOC:
            if address in allocator.live or address in allocator.awaiting_free:
                raise ReplayError(f"event {event} allocates an address that is in use")
            reserved, retries = allocator.reserved, allocator.retries
            try:
                block_sizes[event] = allocator.malloc(address, size, stream, segment_address).size
            except OutOfMemoryError:
                oom = OutOfMemory(event, size, allocator.allocated, reserved)
                break
            if allocator.reserved != reserved or allocator.retries != retries:
                segments.append(Segment(event, config.allocation_size(config.round_size(size))))
                if allocator.reserved > reserved_peak:
                    reserved_peak, peak_event = allocator.reserved, event
            if allocator.allocated > allocated_peak:
                allocated_peak, busiest_event = allocator.allocated, event
            segment_address = None
        elif action == _FREE_REQUESTED:
            if address not in allocator.live:
                raise ReplayError(f"event {event} frees an address that is not in use")
            allocator.free(address)
        elif action == _FREE_COMPLETED:
            allocator.complete_free(address)
        elif action == _SEGMENT_ALLOC:
            segment_address = address
        elif action == _SEGMENT_FREE and not emptied:
            allocator.empty_cache()
        emptied = action == _SEGMENT_FREE

    return Replay(
        allocated_peak=allocated_peak,
        reserved_peak=reserved_peak,
        peak_event=peak_event,
        busiest_event=busiest_event,
        live=_live_after(history, busiest_event, block_sizes, initial),
        segments=tuple(segments),
        retries=allocator.retries,
        oom=oom,
    )


def as_recorded(history: History) -> Replay:
    """What the recording allocator itself reserved, whatever its settings were, on a device without limit.

    Allocated bytes count the rounding of requests, but not the unsplit rest of a block: it is not recorded.

    Raises:
        ReplayError: the history contradicts itself.
    """
    block_sizes: dict[int, int] = {}
    live: dict[int, int] = {}  # bytes by address
    segments: list[Segment] = []
    allocated = allocated_peak = reserved = reserved_peak = 0
    peak_event: int | None = None
    busiest_event: int | None = None
    grown = False  # to a new peak, since the last allocation: the next one is the one it is for

    for event, (action, address, size, _) in enumerate(_rows(history)):
        if action == _ALLOC:
            if address in live:
                raise ReplayError(f"event {event} allocates an address that is in use")
            block_sizes[event] = live[address] = DEFAULT_CONFIG.round_size(size)
            allocated += live[address]
            if allocated > allocated_peak:
                allocated_peak, busiest_event = allocated, event
            if allocated > reserved:
                raise ReplayError(f"event {event} allocates more than the segments hold")
            if grown:
                peak_event, grown = event, False
        elif action == _FREE_REQUESTED:
            if address not in live:
                raise ReplayError(f"event {event} frees an address that is not in use")
            allocated -= live.pop(address)
        elif action in (_SEGMENT_ALLOC, _SEGMENT_MAP):
            reserved += size
            segments.append(Segment(event, size))
            if reserved > reserved_peak:
                reserved_peak, grown = reserved, True
        elif action in (_SEGMENT_FREE, _SEGMENT_UNMAP):
            reserved -= size

    return Replay(
        allocated_peak=allocated_peak,
        reserved_peak=reserved_peak,
        peak_event=peak_event,
        busiest_event=busiest_event,
        live=_live_after(history, busiest_event, block_sizes),
        segments=tuple(segments),
        retries=0,
        oom=None,
    )


# plain numbers: comparing with the members of an enum would take a third of the time of a replay
_ALLOC, _FREE_REQUESTED, _FREE_COMPLETED = (
    int(Action.ALLOC),
    int(Action.FREE_REQUESTED),
    int(Action.FREE_COMPLETED),
)
_SEGMENT_ALLOC, _SEGMENT_FREE = int(Action.SEGMENT_ALLOC), int(Action.SEGMENT_FREE)
_SEGMENT_MAP, _SEGMENT_UNMAP = int(Action.SEGMENT_MAP), int(Action.SEGMENT_UNMAP)


def _rows(history: History) -> Iterator[tuple[int, int, int, int]]:
    return zip(history.action, history.address, history.size, history.stream, strict=True)


def _live_after(
    history: History, event: int | None, block_sizes: dict[int, int], initial: Sequence[HeldSegment] = ()
) -> tuple[LiveBlock, ...]:
    """The blocks in use after `event`: a second pass is cheaper than a copy at every new peak."""
    if event is None:
        return ()
    before = {
        block.address: LiveBlock(BEFORE, block.address, block.requested, block.size)
        for segment in initial
        for block in segment.blocks
        if block.state is State.ALLOCATED
    }
    allocated_by: dict[int, int] = {}
    for at in range(event + 1):
        action = history.action[at]
        if action == _ALLOC:
            allocated_by[history.address[at]] = at
        elif action == _FREE_REQUESTED and allocated_by.pop(history.address[at], None) is None:
            del before[history.address[at]]
    live = [LiveBlock(at, address, history.size[at], block_sizes[at]) for address, at in allocated_by.items()]
    return tuple(sorted([*before.values(), *live], key=lambda block: block.address))
