"""A simple model of `backend:cudaMallocAsync`: one pool of the driver, from which all streams allocate.

The driver does not tell how it places blocks, so this is not exact. It is what cannot be less: the bytes in
use, in blocks of 512 B, and the pool in pages of 2 MiB. PyTorch lets the pool keep all that is freed until
`torch.cuda.empty_cache` (`cudaMemPoolAttrReleaseThreshold` without limit), as it does without memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from estimator.allocator.history import ALLOC, FREE_COMPLETED, SEGMENT_FREE, SEGMENT_UNMAP, History
from estimator.allocator.replay import BEFORE, LiveBlock, OutOfMemory, Replay, Segment
from estimator.allocator.rules import ROUND_LARGE, UNLIMITED
from estimator.held import HeldSegment, State

GRANULE = 512


def replay_stream_ordered(
    history: History, capacity: int = UNLIMITED, initial: Iterable[HeldSegment] = ()
) -> Replay:
    """What a history takes from a device whose pool may have `capacity` bytes; arguments as `replay`."""
    held = [block for segment in initial for block in segment.blocks if block.state is not State.FREE]
    live = {  # by address
        block.address: LiveBlock(BEFORE, block.address, block.requested, _rounded(block.requested))
        for block in held
    }
    gone: list[LiveBlock] = []  # what was live at the busiest moment, and is freed since
    segments: list[Segment] = []
    used = used_peak = sum(block.size for block in live.values())
    reserved = reserved_peak = _pages(used)
    requested = requested_peak = sum(block.requested for block in live.values())
    busiest_event = peak_event = BEFORE if live else None
    oom = OutOfMemory(BEFORE, 0, used, 0) if reserved > capacity else None
    for event, (action, address, size, _) in enumerate(history.rows() if oom is None else ()):
        if action == ALLOC:
            block = LiveBlock(event, address, size, _rounded(size))
            needed = _pages(used + block.size)
            if needed > capacity:
                oom = OutOfMemory(event, size, used, reserved)
                break
            live[address] = block
            used += block.size
            requested += size
            requested_peak = max(requested_peak, requested)
            if needed > reserved:
                segments.append(Segment(event, needed - reserved))
                reserved = needed
                if reserved > reserved_peak:
                    reserved_peak, peak_event = reserved, event
            if used > used_peak:
                used_peak, busiest_event = used, event
                gone.clear()
        elif action == FREE_COMPLETED and address in live:
            block = live.pop(address)
            used -= block.size
            requested -= block.requested
            if busiest_event is not None and block.event <= busiest_event:
                gone.append(block)
        elif action in (SEGMENT_FREE, SEGMENT_UNMAP):  # the script emptied the cache
            reserved = _pages(used)
    if busiest_event is not None:
        gone.extend(block for block in live.values() if block.event <= busiest_event)
    return Replay(
        allocated_peak=used_peak,
        reserved_peak=reserved_peak,
        peak_event=peak_event,
        busiest_event=busiest_event,
        live=tuple(sorted(gone, key=lambda block: block.address)),
        segments=tuple(segments),
        retries=0,
        oom=oom,
        active_peak=used_peak,
        requested_peak=requested_peak,
        peak_cached=reserved_peak - used_peak,
    )


def _rounded(size: int) -> int:
    return max(-(-size // GRANULE), 1) * GRANULE


def _pages(size: int) -> int:
    return -(-size // ROUND_LARGE) * ROUND_LARGE
