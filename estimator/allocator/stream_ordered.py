"""A simple model of `backend:cudaMallocAsync`: one pool of the driver, from which all streams allocate.

The driver does not tell how it places blocks, so this is not exact. It is what cannot be less: the bytes in
use, in blocks of 512 B, and the pool in pages of 2 MiB. PyTorch lets the pool keep all that is freed until
`torch.cuda.empty_cache` (`cudaMemPoolAttrReleaseThreshold` without limit), as it does without memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from estimator.allocator.busiest import BEFORE, Busiest, LiveBlock
from estimator.allocator.history import ALLOC, FREE_COMPLETED, SEGMENT_FREE, SEGMENT_UNMAP, History
from estimator.allocator.replay import OutOfMemory, Replay, Segment
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
    segments: list[Segment] = []
    used = sum(block.size for block in live.values())
    busiest = Busiest(used)
    reserved = reserved_peak = _pages(used)
    requested = requested_peak = sum(block.requested for block in live.values())
    peak_event = busiest.event
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
            if used > busiest.bytes:
                busiest.exceed(used, event)
        elif action == FREE_COMPLETED and address in live:
            block = live.pop(address)
            used -= block.size
            requested -= block.requested
            busiest.free(block)
        elif action in (SEGMENT_FREE, SEGMENT_UNMAP):  # the script emptied the cache
            reserved = _pages(used)
    return Replay(
        allocated_peak=busiest.bytes,
        reserved_peak=reserved_peak,
        peak_event=peak_event,
        busiest_event=busiest.event,
        live=busiest.live(live.values()),
        segments=tuple(segments),
        retries=0,
        oom=oom,
        active_peak=busiest.bytes,
        requested_peak=requested_peak,
        peak_cached=reserved_peak - busiest.bytes,
    )


def _rounded(size: int) -> int:
    return max(-(-size // GRANULE), 1) * GRANULE


def _pages(size: int) -> int:
    return -(-size // ROUND_LARGE) * ROUND_LARGE
