"""Replays of a recorded history: what the allocator would have reserved on a device and under settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from estimator.allocator.busiest import BEFORE, Busiest, LiveBlock
from estimator.allocator.caching import Allocator, OutOfMemoryError
from estimator.allocator.history import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    History,
    ReplayError,
)
from estimator.allocator.rules import DEFAULT_CONFIG, UNLIMITED, AllocatorConfig
from estimator.allocator.state import restore
from estimator.held import HeldSegment


@dataclass(frozen=True, slots=True)
class Segment:
    """One `cudaMalloc` (or mapped range of an expandable segment): the event that needed it and its bytes."""

    event: int
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
    to get another one. After `oom` nothing was replayed; its event is `BEFORE` where not even the
    initial state fits.

    Fragmentation, after `peak_event`: `peak_cached` bytes were reserved but not in use; `peak_inactive_split`
    of them could not even be given back, for something else in their segments was in use.
    `device_allocs` and `device_frees` count what was taken from the device and given back.
    """

    allocated_peak: int
    reserved_peak: int
    peak_event: int | None
    busiest_event: int | None
    live: tuple[LiveBlock, ...]
    segments: tuple[Segment, ...]
    retries: int
    oom: OutOfMemory | None
    active_peak: int = 0
    requested_peak: int = 0
    peak_cached: int = 0
    peak_inactive_split: int = 0
    device_allocs: int = 0
    device_frees: int = 0


def replay(
    history: History,
    capacity: int = UNLIMITED,
    config: AllocatorConfig = DEFAULT_CONFIG,
    initial: Iterable[HeldSegment] = (),
    total: int | None = None,
) -> Replay:
    """Replays a recorded history on a device whose allocator may reserve `capacity` bytes.

    `initial` is what the allocator held before the history begins, `total` the bytes of the whole device
    where that is more than `capacity`: `config.memory_fraction` is a part of it.

    Of the recorded segments only two things are used: their addresses, where the replay needs a segment at
    the same event, so that equal blocks are chosen in the recorded order; and that segments were freed. The
    script must have asked for that (`torch.cuda.empty_cache`): the recording device never runs out of memory.

    Memory is linear in the blocks that live at one time (and in the segments taken), not in the events.

    Raises:
        ReplayError: the history contradicts itself, or the initial state.
    """
    allocator = Allocator(capacity, config, total)
    oom: OutOfMemory | None = None
    try:
        mapped = (
            (address, size, stream)
            for action, address, size, stream in history.rows()
            if action == SEGMENT_MAP
        )
        restore(allocator, initial, mapped)
    except OutOfMemoryError:
        oom = OutOfMemory(BEFORE, 0, allocator.allocated, allocator.reserved)
    pools = history.pool
    live, awaiting_free, obtained = allocator.live, allocator.awaiting_free, allocator.obtained
    malloc, free, complete_free = allocator.malloc, allocator.free, allocator.complete_free
    born: dict[int, int] = dict.fromkeys(live, BEFORE)  # the event that allocated what is live, by address
    busiest = Busiest(allocator.allocated)
    segments: list[Segment] = []
    reserved_peak = allocator.reserved
    peak_event: int | None = BEFORE if reserved_peak else None
    peak_cached, peak_inactive_split = reserved_peak - allocator.active, allocator.inactive_split
    segment_address: int | None = None  # recorded since the last allocation
    emptied = False  # in a row of freed segments, which is one `empty_cache`

    for event, (action, address, size, stream) in enumerate(history.rows() if oom is None else ()):
        if action == ALLOC:
            if address in live or address in awaiting_free:
                raise ReplayError(f"event {event} allocates an address that is in use")
            try:
                if pools and pools[event]:
                    _malloc_captured(allocator, pools[event], address, size, stream, segment_address)
                else:
                    malloc(address, size, stream, segment_address)
            except OutOfMemoryError:
                oom = OutOfMemory(event, size, allocator.allocated, allocator.reserved)
                break
            born[address] = event
            if obtained:
                segments.extend(Segment(event, taken) for taken in obtained)
                obtained.clear()
                if allocator.reserved > reserved_peak:
                    reserved_peak, peak_event = allocator.reserved, event
                    peak_cached = reserved_peak - allocator.active
                    peak_inactive_split = allocator.inactive_split
            if allocator.allocated > busiest.bytes:
                busiest.exceed(allocator.allocated, event)
            segment_address = None
        elif action == FREE_REQUESTED:
            if address not in live:
                raise ReplayError(f"event {event} frees an address that is not in use")
            block = free(address)
            since = born.pop(address)
            if busiest.includes(since):
                busiest.free(LiveBlock(since, address, block.requested, block.size))
        elif action == FREE_COMPLETED:
            complete_free(address)
        elif action == SEGMENT_ALLOC:
            segment_address = address
        elif action in (SEGMENT_FREE, SEGMENT_UNMAP) and not emptied:
            allocator.empty_cache()
        emptied = action in (SEGMENT_FREE, SEGMENT_UNMAP)

    return Replay(
        allocated_peak=busiest.bytes,
        reserved_peak=reserved_peak,
        peak_event=peak_event,
        busiest_event=busiest.event,
        live=busiest.live(
            LiveBlock(since, address, live[address].requested, live[address].size)
            for address, since in born.items()
        ),
        segments=tuple(segments),
        retries=allocator.retries,
        oom=oom,
        active_peak=allocator.active_peak,
        requested_peak=allocator.requested_peak,
        peak_cached=peak_cached,
        peak_inactive_split=peak_inactive_split,
        device_allocs=allocator.device_allocs,
        device_frees=allocator.device_frees,
    )


def _malloc_captured(allocator: Allocator, pool: int, *request: int | None) -> None:
    """Allocates from a private pool as a CUDA graph's capture does: no cached memory is freed for it."""
    allocator.begin_allocate_to_pool(pool, is_capture=True)
    try:
        allocator.malloc(*request)  # type: ignore[arg-type]
    finally:
        allocator.end_allocate_to_pool(pool)


def as_recorded(history: History) -> Replay:
    """What the recording allocator itself reserved, whatever its settings were, on a device without limit.

    Allocated bytes count the rounding of requests, but not the unsplit rest of a block: it is not recorded.

    Raises:
        ReplayError: the history contradicts itself.
    """
    live: dict[int, LiveBlock] = {}  # by address
    busiest = Busiest()
    segments: list[Segment] = []
    allocated = reserved = reserved_peak = 0
    peak_event: int | None = None
    grown = False  # to a new peak, since the last allocation: the next one is the one it is for

    for event, (action, address, size, _) in enumerate(history.rows()):
        if action == ALLOC:
            if address in live:
                raise ReplayError(f"event {event} allocates an address that is in use")
            rounded = DEFAULT_CONFIG.round_size(size)
            live[address] = LiveBlock(event, address, size, rounded)
            allocated += rounded
            if allocated > busiest.bytes:
                busiest.exceed(allocated, event)
            if allocated > reserved:
                raise ReplayError(f"event {event} allocates more than the segments hold")
            if grown:
                peak_event, grown = event, False
        elif action == FREE_REQUESTED:
            if address not in live:
                raise ReplayError(f"event {event} frees an address that is not in use")
            block = live.pop(address)
            allocated -= block.size
            busiest.free(block)
        elif action in (SEGMENT_ALLOC, SEGMENT_MAP):
            reserved += size
            segments.append(Segment(event, size))
            if reserved > reserved_peak:
                reserved_peak, grown = reserved, True
        elif action in (SEGMENT_FREE, SEGMENT_UNMAP):
            reserved -= size

    return Replay(
        allocated_peak=busiest.bytes,
        reserved_peak=reserved_peak,
        peak_event=peak_event,
        busiest_event=busiest.event,
        live=busiest.live(live.values()),
        segments=tuple(segments),
        retries=0,
        oom=None,
    )
