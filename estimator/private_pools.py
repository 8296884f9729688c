"""Which allocations of a history came from private pools: those of CUDA graphs, and `torch.cuda.MemPool`.

The history itself tells it in new versions of PyTorch only, but a snapshot has the pool of each segment, and
a graph keeps its pool: so the segments at the end tell about all allocations that lie in them, back to the
moment when the segment was taken from the device.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence

from estimator.allocator import Action

Range = tuple[int, int, int]  # first address, bytes, number of the pool

_ALLOC, _SEGMENT_ALLOC = int(Action.ALLOC), int(Action.SEGMENT_ALLOC)


def of_allocations(action: Sequence[int], address: Sequence[int], ranges: Iterable[Range]) -> list[int]:
    """The number of the private pool for each entry of a history, 0 for none; empty if there are no pools.

    `ranges` are those of the segments of private pools when the history ends.
    """
    held: list[Range] = []
    for one in ranges:
        insort(held, one)
    if not held:
        return []
    pools = [0] * len(action)
    for event in range(len(action) - 1, -1, -1):
        if action[event] not in (_ALLOC, _SEGMENT_ALLOC):
            continue
        at = bisect_right(held, (address[event], 1 << 64)) - 1
        if at < 0 or address[event] >= held[at][0] + held[at][1]:
            continue
        if action[event] == _ALLOC:
            pools[event] = held[at][2]
        elif address[event] == held[at][0]:
            del held[at]  # before, something else may have been there
    return pools
