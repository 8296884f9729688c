"""The least memory in which a recorded history still runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from estimator.allocator import DEFAULT_CONFIG, AllocatorConfig, History, Replay, replay
from estimator.held import HeldSegment

PAGE = 2 * 1024**2  # the device hands memory out in pieces of this


@dataclass(frozen=True, slots=True)
class Least:
    """The least capacity found (bytes), and how often the allocator frees its cache to live in it."""

    capacity: int
    retries: int


def least_capacity(
    history: History,
    config: AllocatorConfig = DEFAULT_CONFIG,
    initial: Iterable[HeldSegment] = (),
    unlimited: Replay | None = None,
    resolution: int = PAGE,
) -> Least:
    """Halves the interval between what is in use at most and what is reserved where there is no limit.

    The history runs in the capacity that is returned, and not in `resolution` bytes less. Fragmentation does
    not always grow as memory shrinks, so it may run in a smaller one still. `unlimited` is the replay without
    limit, if it is known.

    Raises:
        ReplayError: the history contradicts itself.
    """
    held = tuple(initial)
    most = unlimited or replay(history, config=config, initial=held)
    low, high = -(-most.allocated_peak // PAGE) - 1, -(-most.reserved_peak // PAGE)
    retries = most.retries
    resolution = max(resolution, PAGE)
    while (high - low) * PAGE > resolution:
        middle = (low + high) // 2
        done = replay(history, middle * PAGE, config, held)
        if done.oom is None:
            high, retries = middle, done.retries
        else:
            low = middle
    return Least(high * PAGE, retries)
