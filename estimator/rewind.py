"""What the allocator held at the beginning of a history, from what it holds at the end, and the reverse.

PyTorch keeps the last N entries of its memory history, and recording may begin late: then blocks are freed
that the history never allocated. The segments at its end are known, so their state at its beginning follows
by undoing the history entry by entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from estimator.allocator import (
    DEFAULT_CONFIG,
    SMALL_BUFFER,
    Action,
    AllocatorConfig,
    History,
    maps_small_pages,
)
from estimator.held import HeldBlock, HeldSegment, State


class HeldError(ValueError):
    """The history and the segments at its end contradict each other."""


@dataclass(slots=True)
class _Live:
    requested: int
    size: int | None  # unknown: freed within the history, which tells only what was asked for
    state: State


def rewind(
    final: Iterable[HeldSegment], history: History, config: AllocatorConfig = DEFAULT_CONFIG
) -> tuple[HeldSegment, ...]:
    """The segments at the beginning of `history`, ordered by address; `final` are those at its end.

    Exact but for one thing: behind a block that was freed in the history, a gap that could be the unsplit
    rest of that block, by the rules of `config`, is taken for it.

    Raises:
        HeldError: the history does not lead to `final`.
    """
    segments = _Segments(final)
    live = segments.live_blocks()
    columns = (history.action, history.address, history.size, history.stream)
    rows = zip(*(reversed(column) for column in columns), strict=True)
    for action, address, size, stream in rows:
        if action == _ALLOC:
            if live.pop(address, None) is None:
                raise HeldError("a block that is allocated in the history is nowhere at its end")
        elif action == _FREE_COMPLETED:
            if address in live:
                raise HeldError("a block is freed in the history and allocated at its end")
            live[address] = _Live(size, None, State.AWAITING_FREE)
        elif action == _FREE_REQUESTED:
            block = live.get(address)
            if block is None or block.state is not State.AWAITING_FREE:
                raise HeldError("a block is freed in the history and allocated at its end")
            block.state = State.ALLOCATED
        elif action in _GROWING:
            segments.remove(address, size, action == Action.SEGMENT_MAP)
        elif action in _SHRINKING:
            segments.add(address, size, stream, action == Action.SEGMENT_UNMAP)
    return segments.filled(live, config)


def advance(
    initial: Iterable[HeldSegment], history: History, config: AllocatorConfig = DEFAULT_CONFIG
) -> tuple[HeldSegment, ...]:
    """The segments at the end of `history`, ordered by address; `initial` are those at its beginning.

    As `rewind`, it takes a gap behind a block for its unsplit rest where it can be that.

    Raises:
        HeldError: the history does not follow from `initial`.
    """
    segments = _Segments(initial)
    live = segments.live_blocks()
    rows = zip(history.action, history.address, history.size, history.stream, strict=True)
    for action, address, size, stream in rows:
        if action == _ALLOC:
            if address in live:
                raise HeldError("an address is allocated that is in use")
            live[address] = _Live(size, None, State.ALLOCATED)
        elif action == _FREE_REQUESTED:
            if address not in live:
                raise HeldError("an address is freed that is not in use")
            live[address].state = State.AWAITING_FREE
        elif action == _FREE_COMPLETED:
            if live.pop(address, None) is None:
                raise HeldError("an address is freed that is not in use")
        elif action in _GROWING:
            segments.add(address, size, stream, action == Action.SEGMENT_MAP)
        elif action in _SHRINKING:
            segments.remove(address, size, action == Action.SEGMENT_UNMAP)
    return segments.filled(live, config)


_ALLOC, _FREE_REQUESTED, _FREE_COMPLETED = (
    int(Action.ALLOC),
    int(Action.FREE_REQUESTED),
    int(Action.FREE_COMPLETED),
)
_GROWING = (int(Action.SEGMENT_ALLOC), int(Action.SEGMENT_MAP))
_SHRINKING = (int(Action.SEGMENT_FREE), int(Action.SEGMENT_UNMAP))


class _Segments:
    """Segments by address, without their blocks."""

    def __init__(self, held: Iterable[HeldSegment]) -> None:
        self._held = sorted(held, key=lambda segment: segment.address)
        self._by_address = {segment.address: replace(segment, blocks=()) for segment in self._held}

    def live_blocks(self) -> dict[int, _Live]:
        return {
            block.address: _Live(block.requested, block.size, block.state)
            for segment in self._held
            for block in segment.blocks
            if block.state is not State.FREE
        }

    def add(self, address: int, size: int, stream: int, mapped: bool) -> None:
        if not mapped:
            self._put(HeldSegment(address, size, stream, size == SMALL_BUFFER, False, ()))
            return
        piece = HeldSegment(address, size, stream, maps_small_pages(size), True, ())
        after = self._by_address.get(address + size)
        if after is not None and after.is_expandable and after.stream == stream:
            del self._by_address[after.address]
            piece = replace(piece, size=size + after.size, is_small=after.is_small)
        before = self._ending_at(address)
        if before is not None and before.is_expandable and before.stream == stream:
            del self._by_address[before.address]
            piece = replace(before, size=before.size + piece.size)
        self._put(piece)

    def remove(self, address: int, size: int, mapped: bool) -> None:
        whole = self._by_address.get(address) if not mapped else self._around(address)
        if whole is None or (not mapped and whole.size != size):
            raise HeldError("a segment of the history is not where it should be")
        del self._by_address[whole.address]
        if not mapped:
            return
        end, whole_end = address + size, whole.address + whole.size
        if end > whole_end:
            raise HeldError("a segment of the history is not where it should be")
        if whole.address < address:
            self._put(replace(whole, size=address - whole.address))
        if end < whole_end:
            self._put(replace(whole, address=end, size=whole_end - end))

    def _put(self, segment: HeldSegment) -> None:
        if segment.address in self._by_address:
            raise HeldError("two segments of the history lie at one address")
        self._by_address[segment.address] = segment

    def _around(self, address: int) -> HeldSegment | None:
        for segment in self._by_address.values():
            if segment.is_expandable and segment.address <= address < segment.address + segment.size:
                return segment
        return None

    def _ending_at(self, address: int) -> HeldSegment | None:
        for segment in self._by_address.values():
            if segment.address + segment.size == address:
                return segment
        return None

    def filled(self, live: dict[int, _Live], config: AllocatorConfig) -> tuple[HeldSegment, ...]:
        """The segments with these blocks in them."""
        ordered = [self._by_address[address] for address in sorted(self._by_address)]
        begins = [segment.address for segment in ordered]
        inside: list[list[tuple[int, _Live]]] = [[] for _ in ordered]
        for address in sorted(live):
            index = bisect_right(begins, address) - 1
            if index < 0:
                raise HeldError("a block lies in no segment")
            inside[index].append((address, live[address]))
        return tuple(
            replace(segment, blocks=tuple(_blocks(segment, blocks, config)))
            for segment, blocks in zip(ordered, inside, strict=True)
        )


def _blocks(
    segment: HeldSegment, live: Sequence[tuple[int, _Live]], config: AllocatorConfig
) -> Iterable[HeldBlock]:
    """The blocks in use and the free ones between them."""
    at, segment_end = segment.address, segment.address + segment.size
    for number, (address, block) in enumerate(live):
        if address > at:
            yield HeldBlock(at, address - at, 0, State.FREE)
        end = live[number + 1][0] if number + 1 < len(live) else segment_end
        size = block.size
        if size is None:
            size = config.round_size(block.requested)
            rest = end - address - size
            if rest > 0 and not (segment.is_expandable or config.should_split(size, rest, segment.is_small)):
                size = end - address
        if address < at or address + size > end:
            raise HeldError("blocks overlap, or reach over the end of their segment")
        yield HeldBlock(address, size, block.requested, block.state)
        at = address + size
    if at < segment_end:
        yield HeldBlock(at, segment_end - at, 0, State.FREE)
