"""Allocations of private pools are told by the segments that are held at the end."""

from estimator.allocator import Action, History, replay
from estimator.private_pools import of_allocations

MIB = 1024**2


def history(*rows, ranges=()):
    columns = [list(column) for column in zip(*rows, strict=True)]
    return History(*columns, [0] * len(rows), pool=of_allocations(columns[0], columns[1], ranges))


def test_segments_at_the_end_tell_back_to_when_they_were_taken():
    rows = [
        (Action.SEGMENT_ALLOC, 0, 20 * MIB),
        (Action.ALLOC, 5, 2 * MIB),
        (Action.SEGMENT_FREE, 0, 20 * MIB),
        (Action.SEGMENT_ALLOC, 0, 20 * MIB),
        (Action.ALLOC, 5, 2 * MIB),
        (Action.ALLOC, 40 * MIB, 2 * MIB),
    ]
    assert history(*rows, ranges=[(0, 20 * MIB, 7)]).pool == [0, 0, 0, 0, 7, 0]
    assert history(*rows).pool == []


def test_free_blocks_of_private_pools_are_for_their_pool_only():
    rows = [
        (Action.SEGMENT_ALLOC, 0, 20 * MIB),
        (Action.ALLOC, 0, 2 * MIB),
        (Action.FREE_REQUESTED, 0, 2 * MIB),
        (Action.FREE_COMPLETED, 0, 2 * MIB),
        (Action.ALLOC, 30 * MIB, 2 * MIB),
        (Action.ALLOC, 1 * MIB, 2 * MIB),
    ]
    assert replay(history(*rows)).reserved_peak == 20 * MIB
    assert replay(history(*rows, ranges=[(0, 20 * MIB, 1)])).reserved_peak == 40 * MIB


def test_what_a_graph_holds_is_not_freed_for_lack_of_memory():
    rows = [
        (Action.ALLOC, 0, 30 * MIB),
        (Action.FREE_REQUESTED, 0, 30 * MIB),
        (Action.FREE_COMPLETED, 0, 30 * MIB),
        (Action.ALLOC, 50 * MIB, 30 * MIB),
    ]
    shared = replay(history(*rows), capacity=40 * MIB)
    assert shared.oom is None
    private = replay(history(*rows, ranges=[(0, 30 * MIB, 1)]), capacity=40 * MIB)
    assert (private.oom.event, private.retries) == (3, 1)
