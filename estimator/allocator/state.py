"""From what an allocator held at one moment to an allocator, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from estimator.allocator.blocks import Block
from estimator.allocator.caching import Allocator
from estimator.allocator.rules import SMALL_BUFFER, maps_small_pages
from estimator.held import HeldBlock, HeldSegment, State

Mapped = tuple[int, int, int]  # address, bytes, stream
REACH = 1 << 41  # bytes: addresses that lie further apart are of different expandable segments


def restore(allocator: Allocator, segments: Iterable[HeldSegment], mapped: Iterable[Mapped] = ()) -> None:
    """Gives a fresh allocator the segments that it held; the first is the oldest.

    Segments without a block in use are left out where the device has no room for them. Where segments are to
    be expandable now and were not, or the reverse, what was in use is allocated anew. `mapped` are ranges
    that are mapped later on: an expandable segment may begin before the first that is mapped now.

    Raises:
        OutOfMemoryError: what was in use does not fit the device.
        ReplayError: segments overlap.
    """
    segments = list(segments)
    were_expandable = any(segment.is_expandable for segment in segments)
    if segments and allocator.config.expandable_segments != were_expandable:
        _allocate(allocator, segments)
        return
    room = allocator.capacity - sum(segment.size for segment in segments if _in_use(segment))
    kept: list[HeldSegment] = []
    for segment in segments:
        if not _in_use(segment):
            if segment.size > room:
                continue
            room -= segment.size
        kept.append(segment)
    for segment in kept:
        if not segment.is_expandable:
            allocator.adopt(segment)
    if were_expandable:
        later = list(mapped)
        for ranges in _of_one_segment(segment for segment in kept if segment.is_expandable):
            allocator.adopt_expandable(_base(allocator, ranges[0], later), ranges)


def _of_one_segment(ranges: Iterable[HeldSegment]) -> Iterator[list[HeldSegment]]:
    """The mapped ranges of each expandable segment: those of one pool and stream that are not far apart."""
    groups: dict[tuple[int, int, bool], list[list[HeldSegment]]] = {}
    for part in sorted(ranges, key=lambda part: part.address):
        known = groups.setdefault((part.pool, part.stream, part.is_small), [])
        if known and part.address - known[-1][0].address < REACH:
            known[-1].append(part)
        else:
            known.append([part])
    yield from sorted(
        (group for known in groups.values() for group in known), key=lambda group: group[0].address
    )


def _base(allocator: Allocator, first: HeldSegment, mapped: Iterable[Mapped]) -> int:
    """Where the expandable segment begins of which `first` is the lowest range that is mapped."""
    page = SMALL_BUFFER if first.is_small else allocator.config.large_segment_size
    below = (
        address
        for address, size, stream in mapped
        if stream == first.stream
        and maps_small_pages(size) == first.is_small
        and 0 < first.address - address < REACH
        and (first.address - address) % page == 0
    )
    return min(below, default=first.address)


def _in_use(segment: HeldSegment) -> bool:
    return any(block.state is not State.FREE for block in segment.blocks)


def _allocate(allocator: Allocator, segments: Iterable[HeldSegment]) -> None:
    for segment in segments:
        for block in segment.blocks:
            if block.state is not State.FREE:
                allocator.malloc(block.address, block.requested, segment.stream)
            if block.state is State.AWAITING_FREE:
                allocator.free(block.address)
    allocator.obtained.clear()


def capture(allocator: Allocator) -> tuple[HeldSegment, ...]:
    """The segments that an allocator holds, by address; of expandable ones each mapped range."""
    free = (block for pool in allocator.pools() for block in pool)
    blocks = [*allocator.live.values(), *allocator.awaiting_free.values(), *free]
    heads = [block for block in blocks if block.prev is None or not block.prev.mapped]
    return tuple(_segment(allocator, head) for head in sorted(heads, key=lambda head: head.address))


def _segment(allocator: Allocator, head: Block) -> HeldSegment:
    blocks: list[HeldBlock] = []
    block: Block | None = head
    while block is not None and block.mapped:
        if block.free:
            blocks.append(HeldBlock(block.address, block.size, 0, State.FREE))
        else:
            is_live = allocator.live.get(block.handle) is block
            state = State.ALLOCATED if is_live else State.AWAITING_FREE
            blocks.append(HeldBlock(block.address, block.size, block.requested, state))
        block = block.next
    size = sum(block.size for block in blocks)
    is_expandable = head.segment is not None
    pool = head.pool
    number = pool.owner.id or 0
    return HeldSegment(head.address, size, pool.stream, pool.is_small, is_expandable, tuple(blocks), number)
