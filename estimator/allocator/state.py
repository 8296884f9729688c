"""From what an allocator held at one moment to an allocator, and back."""

from __future__ import annotations

from collections.abc import Iterable

from estimator.allocator.blocks import Block
from estimator.allocator.caching import Allocator
from estimator.held import HeldBlock, HeldSegment, State


def restore(allocator: Allocator, segments: Iterable[HeldSegment]) -> None:
    """Gives a fresh allocator the segments that it held; the first is the oldest.

    Segments without a block in use are left out where the device has no room for them. Where segments are to
    be expandable now, or were then, what was in use is allocated anew.

    Raises:
        OutOfMemoryError: what was in use does not fit the device.
        ReplayError: segments overlap.
    """
    segments = list(segments)
    if allocator.config.expandable_segments or any(segment.is_expandable for segment in segments):
        _allocate(allocator, segments)
        return
    room = allocator.capacity - sum(segment.size for segment in segments if _in_use(segment))
    for segment in segments:
        if not _in_use(segment):
            if segment.size > room:
                continue
            room -= segment.size
        allocator.adopt(segment)


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
