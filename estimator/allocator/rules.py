"""Sizes and settings: which block a request gets, and when a block is split.

The names of the constants in PyTorch are kMinBlockSize, kSmallSize and so on (`c10/core/AllocatorConfig.h`;
before 2025 in `c10/cuda/CUDACachingAllocator.cpp`). Sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024**2

MIN_BLOCK_SIZE = 512  # every block is a multiple of this
SMALL_SIZE = 1 * MIB  # the largest request that the small pool serves
SMALL_BUFFER = 2 * MIB  # segments of the small pool
LARGE_BUFFER = 20 * MIB  # segments for requests above SMALL_SIZE and below MIN_LARGE_ALLOC
MIN_LARGE_ALLOC = 10 * MIB  # from here on a segment is as large as its request ...
ROUND_LARGE = 2 * MIB  # ... rounded up to this

UNLIMITED = 1 << 62

# `roundup_power2_divisions` has a number for each size: 1 MiB and below, 2 MiB, ... 32 GiB and above
INTERVALS = 16
NO_DIVISIONS = (0,) * INTERVALS


@dataclass(frozen=True, slots=True)
class AllocatorConfig:
    """Rules of the native allocator: the options of `PYTORCH_ALLOC_CONF`, in bytes, with their defaults.

    `memory_fraction`: what `torch.cuda.set_per_process_memory_fraction` or `per_process_memory_fraction` set;
    None when nothing did.
    `oldest_segment_first`: which of free blocks of one size is taken, the one in the oldest segment (since
    pytorch/pytorch#183591, 2026) or the lowest in address (before).
    `any_pool_is_a_capture`: whether a private pool in use stops all freeing, even where no CUDA graph is
    captured (before 2026).
    `whole_fraction_is_a_limit`: whether a fraction of 1.0 that was set is a limit, too (before torch 2.10).

    `estimator.alloc_conf` makes one from the text of an environment variable and the version of torch.
    """

    oldest_segment_first: bool = True
    max_split_size: int = UNLIMITED
    max_non_split_rounding_size: int = LARGE_BUFFER
    large_segment_size: int = LARGE_BUFFER
    roundup_power2_divisions: tuple[int, ...] = NO_DIVISIONS
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    memory_fraction: float | None = None
    whole_fraction_is_a_limit: bool = False
    any_pool_is_a_capture: bool = False

    def round_size(self, size: int) -> int:
        """Bytes of the block that a request of `size` bytes gets (`round_size`)."""
        if size < MIN_BLOCK_SIZE:
            return MIN_BLOCK_SIZE
        divisions = self.roundup_power2_divisions[_interval(size)]
        if divisions > 1 and size > MIN_BLOCK_SIZE * divisions:
            return _next_division(size, divisions)
        return -(-size // MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE

    def allocation_size(self, size: int) -> int:
        """Bytes of a segment for a block of `size` bytes that is not cached (`get_allocation_size`)."""
        if size <= SMALL_SIZE:
            return SMALL_BUFFER
        if size < MIN_LARGE_ALLOC:
            return self.large_segment_size
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    def should_split(self, size: int, rest: int, small: bool) -> bool:
        """Whether `rest` bytes behind a block of `size` become a block of their own (`should_split`)."""
        if small or self.expandable_segments:
            return rest >= MIN_BLOCK_SIZE
        return size < self.max_split_size and rest > SMALL_SIZE

    def allowed_memory(self, total: int) -> int | None:
        """Bytes that the fraction allows on a device of `total` bytes; None: no limit is set."""
        fraction = self.memory_fraction
        if fraction is None or (fraction >= 1.0 and not self.whole_fraction_is_a_limit):
            return None
        return int(fraction * total)


def maps_small_pages(size: int) -> bool:
    """Whether a range of an expandable segment is of the small pool: large pages have 20 MiB by default."""
    return size % LARGE_BUFFER != 0


def _interval(size: int) -> int:
    return min(max(size.bit_length() - MIB.bit_length(), 0), INTERVALS - 1)


def _next_division(size: int, divisions: int) -> int:
    """The space between two powers of 2 is cut into so many parts (`roundup_power2_next_division`)."""
    if size & (size - 1) == 0:
        return size
    floor = 1 << (size.bit_length() - 1)
    part = floor >> (divisions.bit_length() - 1)
    if part == 0:
        return floor << 1
    return -(-size // part) * part


DEFAULT_CONFIG = AllocatorConfig()
LOWEST_ADDRESS_FIRST = AllocatorConfig(oldest_segment_first=False)
