"""The allocator replay against PyTorch's rules, against laws, and against PyTorch's own allocator."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import trace
from estimator.allocator import (
    DEFAULT_CONFIG,
    LOWEST_ADDRESS_FIRST,
    Action,
    Allocator,
    Block,
    History,
    OutOfMemoryError,
    ReplayError,
    as_recorded,
    capture,
    replay,
    replay_stream_ordered,
    restore,
)
from tests.estimator.recording import Recording

KIB, MIB = 1024, 1024**2
ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "estimator" / "fake_cuda" / "lib" / "libgpumem_cuda.so"


@pytest.mark.parametrize(
    ("size", "rounded", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (100 * MIB, 100 * MIB, 100 * MIB),
    ],
)
def test_sizes_of_blocks_and_segments(size, rounded, segment):
    assert DEFAULT_CONFIG.round_size(size) == rounded
    assert DEFAULT_CONFIG.allocation_size(rounded) == segment


def test_small_blocks_share_a_segment_and_large_ones_do_not_mix_with_them():
    allocator = Allocator()
    first, second = allocator.malloc(1, 512), allocator.malloc(2, 512)
    assert second.address == first.address + 512
    assert allocator.reserved == 2 * MIB
    allocator.malloc(3, 2 * MIB)
    assert allocator.reserved == 22 * MIB


def test_a_rest_of_at_most_one_mib_stays_with_a_large_block():
    allocator = Allocator()
    assert allocator.malloc(1, 11 * MIB).size == 12 * MIB
    assert allocator.malloc(2, 19 * MIB).size == 20 * MIB
    assert allocator.malloc(3, 11 * MIB - 512).size == 11 * MIB - 512  # 1 MiB and 512 bytes are left
    assert allocator.allocated == 43 * MIB - 512


def test_the_best_fit_is_taken_and_of_equal_blocks_the_oldest():
    allocator = Allocator()
    blocks = {handle: allocator.malloc(handle, size * MIB) for handle, size in enumerate((40, 30, 30, 30))}
    for handle in (3, 0, 2, 1):
        allocator.free(handle)
        allocator.complete_free(handle)
    assert allocator.malloc(9, 30 * MIB).address == blocks[1].address
    assert allocator.malloc(8, 32 * MIB).size == 32 * MIB
    assert allocator.reserved == 130 * MIB


def test_neighbours_merge_to_the_whole_segment():
    allocator = Allocator()
    for handle in range(4):
        allocator.malloc(handle, 512 * KIB)
    for handle in (0, 2, 1, 3):
        allocator.free(handle)
        allocator.complete_free(handle)
    (pool,) = allocator.pools()
    assert [(block.size, block.is_split) for block in pool] == [(2 * MIB, False)]


def test_streams_have_pools_of_their_own():
    allocator = Allocator()
    allocator.malloc(1, 30 * MIB, stream=0)
    allocator.free(1)
    allocator.complete_free(1)
    allocator.malloc(2, 30 * MIB, stream=7)
    assert allocator.reserved == 60 * MIB


def test_a_block_that_another_stream_uses_waits():
    allocator = Allocator()
    first = allocator.malloc(1, 30 * MIB)
    allocator.free(1)
    assert allocator.allocated == 0
    assert allocator.malloc(2, 30 * MIB).address != first.address
    allocator.complete_free(1)
    assert allocator.malloc(3, 30 * MIB).address == first.address


def test_reserved_may_reach_the_capacity_but_not_exceed_it():
    allocator = Allocator(capacity=100 * MIB)
    allocator.malloc(1, 60 * MIB)
    allocator.malloc(2, 40 * MIB)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(3, 1)
    assert allocator.reserved == 100 * MIB


def test_without_memory_cached_segments_are_freed_and_tried_again():
    allocator = Allocator(capacity=100 * MIB)
    allocator.malloc(1, 60 * MIB)
    allocator.free(1)  # still waiting: running out of memory forces it
    allocator.malloc(2, 80 * MIB)
    assert (allocator.retries, allocator.reserved) == (1, 80 * MIB)
    allocator.complete_free(1)
    assert (allocator.reserved, allocator.allocated) == (80 * MIB, 80 * MIB)


def test_a_replay_tells_where_memory_ran_out():
    recording = Recording()
    recording.free(recording.alloc(50 * MIB))
    for _ in range(3):
        recording.alloc(40 * MIB)
    done = replay(recording.history(), capacity=100 * MIB)
    assert done.retries == 1
    assert done.oom is not None
    assert recording.columns["size"][done.oom.event] == done.oom.requested == 40 * MIB
    assert (done.oom.allocated, done.oom.reserved, done.reserved_peak) == (80 * MIB, 90 * MIB, 90 * MIB)
    assert replay(recording.history()).oom is None


@pytest.mark.parametrize(("config", "first"), [(DEFAULT_CONFIG, 900), (LOWEST_ADDRESS_FIRST, 300)])
def test_between_equal_blocks_the_age_or_the_recorded_address_of_the_segment_decides(config, first):
    """A device may give the second segment the lower address."""
    allocator = Allocator(config=config)
    for handle, address in enumerate((900, 300)):
        assert allocator.malloc(handle, 30 * MIB, segment_address=address * MIB).address == address * MIB
    for handle in (0, 1):
        allocator.free(handle)
        allocator.complete_free(handle)
    assert allocator.malloc(9, 25 * MIB).address == first * MIB


def test_a_recorded_address_that_is_taken_is_not_used_twice():
    allocator = Allocator()
    allocator.malloc(1, 30 * MIB, segment_address=MIB)
    assert allocator.malloc(2, 30 * MIB, segment_address=11 * MIB).address >= 31 * MIB


def test_freed_segments_in_the_recording_are_an_empty_cache():
    recording = Recording()
    kept = recording.alloc(30 * MIB)
    recording.free(recording.alloc(40 * MIB), recording.alloc(50 * MIB))
    recording.empty_cache()
    recording.alloc(60 * MIB)
    done = replay(recording.history())
    assert done.reserved_peak == 120 * MIB
    assert [segment.size for segment in done.segments] == [size * MIB for size in (30, 40, 50, 60)]
    assert done.live[0].address == kept


def test_peaks_and_the_blocks_of_the_busiest_moment():
    recording = Recording()
    weights = recording.alloc(30 * MIB)
    activations = recording.alloc(70 * MIB)
    recording.free(activations)
    recording.alloc(100)
    done = replay(recording.history())
    assert (done.allocated_peak, done.reserved_peak) == (100 * MIB, 102 * MIB)
    assert [block.address for block in done.live] == sorted([weights, activations])
    assert sum(block.size for block in done.live) == done.allocated_peak
    assert done.busiest_event == 3
    assert done.peak_event == len(recording.history()) - 1


def test_nothing_recorded_is_nothing_reserved():
    done = replay(Recording().history())
    assert (done.allocated_peak, done.reserved_peak, done.peak_event, done.live) == (0, 0, None, ())


def test_expandable_segments_count_as_recorded():
    rows = [
        (Action.SEGMENT_MAP, 0, 20 * MIB, 0),
        (Action.ALLOC, 0, 15 * MIB, 0),
        (Action.SEGMENT_MAP, 20 * MIB, 20 * MIB, 0),
        (Action.ALLOC, 15 * MIB, 20 * MIB, 0),
        (Action.FREE_REQUESTED, 15 * MIB, 0, 0),
        (Action.SEGMENT_UNMAP, 20 * MIB, 20 * MIB, 0),
        (Action.ALLOC, 15 * MIB, MIB, 0),
    ]
    done = as_recorded(History(*(list(map(int, column)) for column in zip(*rows, strict=True))))
    assert (done.reserved_peak, done.allocated_peak, done.peak_event) == (40 * MIB, 35 * MIB, 3)


@pytest.mark.parametrize("run", [replay, as_recorded])
def test_histories_that_contradict_themselves_are_refused(run):
    twice = Recording()
    address = twice.alloc(2 * MIB)
    twice.event(Action.ALLOC, address, 5)
    with pytest.raises(ReplayError, match="event 2"):
        run(twice.history())
    freed = Recording()
    freed.event(Action.FREE_REQUESTED, 123, 0)
    with pytest.raises(ReplayError, match="event 0"):
        run(freed.history())


# laws

SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, 3 * MIB),
    st.integers(1, 64 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 20 * MIB, 20 * MIB + 512]),
)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), SIZES, st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 1000), st.booleans()),
        st.tuples(st.just("complete"), st.integers(0, 1000), st.none()),
        st.tuples(st.just("empty"), st.none(), st.none()),
    ),
    max_size=60,
)


def perform(operations, allocator):
    """Does what `operations` say as far as that is possible; yields after each."""
    for handle, (what, value, other) in enumerate(operations):
        if what == "alloc":
            try:
                allocator.malloc(handle, value, other)
            except OutOfMemoryError:
                continue
        elif what == "free" and allocator.live:
            victim = list(allocator.live)[value % len(allocator.live)]
            allocator.free(victim)
            if other:
                allocator.complete_free(victim)
        elif what == "complete" and allocator.awaiting_free:
            allocator.complete_free(list(allocator.awaiting_free)[value % len(allocator.awaiting_free)])
        elif what == "empty":
            allocator.empty_cache()
        yield


def all_blocks(allocator) -> list[Block]:
    free = [block for pool in allocator.pools() for block in pool]
    return [*allocator.live.values(), *allocator.awaiting_free.values(), *free]


@given(OPERATIONS, st.sampled_from([60 * MIB, 200 * MIB, 1 << 50]))
def test_law_blocks_tile_the_segments(operations, capacity):
    allocator = Allocator(capacity)
    for _ in perform(operations, allocator):
        blocks = sorted(all_blocks(allocator), key=lambda block: block.address)
        assert sum(block.size for block in blocks) == allocator.reserved <= capacity
        assert sum(block.size for block in allocator.live.values()) == allocator.allocated
        for one, following in pairwise(blocks):
            assert one.address + one.size <= following.address
        for block in blocks:
            if block.next is not None:
                assert block.next.prev is block
                assert block.address + block.size == block.next.address
                assert not (block.free and block.next.free), "free neighbours were not merged"


@given(OPERATIONS)
def test_law_freeing_all_gives_all_back(operations):
    allocator = Allocator()
    for _ in perform(operations, allocator):
        pass
    for handle in list(allocator.live):
        allocator.free(handle)
    for handle in list(allocator.awaiting_free):
        allocator.complete_free(handle)
    assert allocator.allocated == 0
    assert not any(block.is_split for block in all_blocks(allocator))
    allocator.empty_cache()
    assert allocator.reserved == 0


@given(OPERATIONS, st.integers(1, 300))
def test_law_a_replay_repeats_what_was_recorded(operations, capacity_mib):
    recording = Recording()
    live, waiting = [], []
    for what, value, other in operations:
        if what == "alloc":
            live.append(recording.alloc(value, other))
        elif what == "free" and live:
            address = live.pop(value % len(live))
            recording.free_requested(address)
            if other:
                recording.free_completed(address)
            else:
                waiting.append(address)
        elif what == "complete" and waiting:
            recording.free_completed(waiting.pop(value % len(waiting)))
    history = recording.history()
    done, recorded = replay(history), as_recorded(history)
    assert done == replay(history)
    assert done.reserved_peak == recorded.reserved_peak >= done.allocated_peak >= recorded.allocated_peak
    assert [segment.size for segment in done.segments] == [segment.size for segment in recorded.segments]
    assert replay(history, capacity=done.reserved_peak) == done
    limited = replay(history, capacity=capacity_mib * MIB)
    assert limited.reserved_peak <= capacity_mib * MIB
    assert (limited.oom is None) or limited.retries > 0


# PyTorch itself

PROGRAM = """
import random, torch
graphs = []
def capture(rng, live):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=graphs[0].pool() if graphs else None):
        kept = [torch.empty(int(2 ** rng.uniform(9, 25)), dtype=torch.uint8, device="cuda") for _ in range(40)]
        del kept[::2]
        kept += [torch.empty(int(2 ** rng.uniform(9, 25)), dtype=torch.uint8, device="cuda") for _ in range(20)]
    graphs.append(graph)
    live += kept
rng, live, streams = random.Random(1), [], [torch.cuda.current_stream(), torch.cuda.Stream()]
for step in range(10000):
    if step in (3000, 6000):
        capture(rng, live)
    if live and rng.random() < 0.47:
        live.pop(rng.randrange(len(live)))
    elif rng.random() < 0.005:
        torch.cuda.empty_cache()
    else:
        size = int(2 ** rng.uniform(0, rng.choice([12, 21, 24, 27])))
        with torch.cuda.stream(streams[rng.random() < 0.2]):
            live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
"""


@pytest.mark.skipif(not LIBRARY.exists(), reason="the fake CUDA library is not built")
def test_the_replay_agrees_with_pytorch(tmp_path):
    """PyTorch's own allocator on the fake device: the same segments in the same order, the same peaks."""
    pytest.importorskip("torch")
    device = {
        "name": "NVIDIA H200",
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "memory_bytes": 1 << 40,
        "context_bytes": 0,
        "compute_capability": [9, 0],
        "sm_count": 132,
        "index": 0,
    }
    (tmp_path / "tracer.json").write_text(
        json.dumps(
            {
                "library": str(LIBRARY),
                "devices": [device],
                "enforce_limit": False,
                "node_dir": None,
                "trace": {"out_dir": str(tmp_path), "steps": 1, "max_events": 1_000_000},
            }
        )
    )
    inject = ROOT / "estimator" / "tracer" / "inject"
    environment = os.environ | {"PYTHONPATH": str(inject), "GPUMEM_TRACER": str(tmp_path / "tracer.json")}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=100, cwd=tmp_path)
    (recorded,) = trace.read_all(tmp_path)
    events = recorded.events
    assert sum(pool > 0 for pool in events.pool) == 120
    done = replay(events)
    taken = [
        size
        for action, size in zip(events.action, events.size, strict=True)
        if action == Action.SEGMENT_ALLOC
    ]
    assert len(taken) > 50
    assert [segment.size for segment in done.segments] == taken
    assert done.reserved_peak == as_recorded(events).reserved_peak
    assert done.allocated_peak == recorded.peaks.allocated


def test_every_stream_has_room_for_its_expandable_segment():
    allocator = Allocator(config=replace(DEFAULT_CONFIG, expandable_segments=True))
    for stream in range(8):
        allocator.malloc(stream + 1, MIB, stream)
    assert allocator.reserved == 8 * 2 * MIB


def test_the_pool_of_the_driver_has_no_gaps():
    rows = [
        (Action.ALLOC, 1, 3 * MIB, 0),
        (Action.ALLOC, 2, 700, 0),
        (Action.FREE_REQUESTED, 1, 3 * MIB, 0),
        (Action.FREE_COMPLETED, 1, 3 * MIB, 0),
        (Action.ALLOC, 1, 4 * MIB, 1),
        (Action.SEGMENT_FREE, 9, 2 * MIB, 0),
        (Action.ALLOC, 3, 1 * MIB, 0),
    ]
    history = History(*(list(map(int, column)) for column in zip(*rows, strict=True)))
    done = replay_stream_ordered(history)
    assert [segment.size for segment in done.segments] == [4 * MIB, 2 * MIB]
    assert (done.reserved_peak, done.allocated_peak) == (6 * MIB, 5 * MIB + 1024)
    assert [block.event for block in done.live] == [4, 1, 6]
    assert replay_stream_ordered(history, capacity=5 * MIB).oom.event == 4


@pytest.mark.parametrize("config", [DEFAULT_CONFIG, replace(DEFAULT_CONFIG, expandable_segments=True)])
def test_an_allocator_goes_on_from_what_another_one_held(config):
    rng = random.Random(3)
    total = 1 << 40
    first, second = Allocator(config=config, total=total), Allocator(config=config, total=total)

    def step(handle, live, *allocators):
        if live and rng.random() < 0.5:
            gone = live.pop(rng.randrange(len(live)))
            for allocator, name in allocators:
                allocator.free(name(gone))
                allocator.complete_free(name(gone))
            return
        size, stream = int(2 ** rng.uniform(0, 26)), rng.randrange(2)
        for allocator, name in allocators:
            allocator.malloc(name(handle), size, stream)
        live.append(handle)

    live: list[int] = []
    for handle in range(400):
        step(handle, live, (first, int))
    first.empty_cache()
    held = {handle: first.live[handle].address for handle in live}
    restore(second, capture(first))
    assert second.reserved == first.reserved
    for handle in range(400, 800):
        step(handle, live, (first, int), (second, lambda handle: held.get(handle, handle)))
        assert (second.reserved, second.allocated, second.inactive_split) == (
            first.reserved,
            first.allocated,
            first.inactive_split,
        )
