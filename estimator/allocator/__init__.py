"""Replay of PyTorch's native caching allocator: how much GPU memory a history of allocations reserves.

Written to be read beside `c10/cuda/CUDACachingAllocator.cpp` (PyTorch 2.x), in its terms. A *segment* is what
one `cudaMalloc` returned; it is cut into *blocks*; *reserved* bytes are those of all segments, *allocated*
bytes those of the blocks in use, rounding and unsplit rest included. Sizes are bytes.

`rules` sizes and settings · `blocks` blocks and pools · `device` memory and addresses · `expandable` segments
that grow · `caching` the allocator · `streams` events of `record_stream` · `busiest` what is in use at
the peak · `history`, `state`, `replay`: use.
"""

from __future__ import annotations

from estimator.allocator.blocks import Block, BlockPool
from estimator.allocator.busiest import BEFORE, LiveBlock
from estimator.allocator.caching import Allocator, OutOfMemoryError
from estimator.allocator.history import Action, History, ReplayError
from estimator.allocator.replay import OutOfMemory, Replay, Segment, as_recorded, replay
from estimator.allocator.rules import (
    DEFAULT_CONFIG,
    LOWEST_ADDRESS_FIRST,
    SMALL_BUFFER,
    UNLIMITED,
    AllocatorConfig,
    maps_small_pages,
)
from estimator.allocator.state import capture, restore
from estimator.allocator.stream_ordered import replay_stream_ordered

__all__ = [
    "BEFORE",
    "DEFAULT_CONFIG",
    "LOWEST_ADDRESS_FIRST",
    "SMALL_BUFFER",
    "UNLIMITED",
    "Action",
    "Allocator",
    "AllocatorConfig",
    "Block",
    "BlockPool",
    "History",
    "LiveBlock",
    "OutOfMemory",
    "OutOfMemoryError",
    "Replay",
    "ReplayError",
    "Segment",
    "as_recorded",
    "capture",
    "maps_small_pages",
    "replay",
    "replay_stream_ordered",
    "restore",
]
