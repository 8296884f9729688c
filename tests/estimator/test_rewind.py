"""What was held when a history begins, from what is held at its end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.allocator import Action, History, replay
from estimator.held import HeldBlock, HeldSegment, State
from estimator.rewind import HeldError, rewind
from tests.estimator.recording import Recording

MIB = 1024**2
NOTHING = History([], [], [], [])


def held(recording: Recording) -> tuple[HeldSegment, ...]:
    """What the recording allocator holds now, as PyTorch's snapshot has it."""
    allocator = recording.allocator
    free = {id(block) for pool in allocator.pools() for block in pool}
    live = {id(block) for block in allocator.live.values()}
    segments = []
    blocks = [*allocator.live.values(), *allocator.awaiting_free.values()]
    blocks += [block for pool in allocator.pools() for block in pool]
    for head in sorted((b for b in blocks if b.prev is None), key=lambda b: b.address):
        row, block = [], head
        while block is not None:
            state = State.FREE if id(block) in free else State.AWAITING_FREE
            state = State.ALLOCATED if id(block) in live else state
            requested = 0 if state is State.FREE else recording.requested[block.address]
            row.append(HeldBlock(block.address, block.size, requested, state))
            block = block.next
        size = sum(one.size for one in row)
        segments.append(
            HeldSegment(
                head.address, size, recording.stream_of(head.address), head.pool.is_small, False, tuple(row)
            )
        )
    return tuple(segments)


def since(history: History, event: int) -> History:
    return History(
        history.action[event:], history.address[event:], history.size[event:], history.stream[event:]
    )


SIZES = st.one_of(st.integers(1, 4096), st.integers(1, 3 * MIB), st.integers(1, 40 * MIB))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), SIZES, st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 1000), st.booleans()),
        st.tuples(st.just("complete"), st.integers(0, 1000), st.none()),
        st.tuples(st.just("empty"), st.none(), st.none()),
    ),
    max_size=50,
)


def perform(recording, steps, live, waiting):
    for what, value, other in steps:
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
        elif what == "empty" and not waiting:
            recording.empty_cache()


@given(STEPS, STEPS)
def test_law_the_state_at_the_cut_comes_back_and_the_rest_replays_to_the_end(first, second):
    recording, live, waiting = Recording(), [], []
    perform(recording, first, live, waiting)
    cut, then = len(recording.history()), held(recording)
    perform(recording, second, live, waiting)
    history, final = since(recording.history(), cut), held(recording)
    found = rewind(final, history)
    assert [(s.address, s.size, s.stream, s.is_small) for s in found] == [
        (s.address, s.size, s.stream, s.is_small) for s in then
    ]
    in_use = [(b.address, b.requested, b.state) for s in then for b in s.blocks if b.state is not State.FREE]
    assert [
        (b.address, b.requested, b.state) for s in found for b in s.blocks if b.state is not State.FREE
    ] == in_use
    if found == then:  # else a rest was ambiguous
        done = replay(history, initial=found)
        assert [s.size for s in done.segments] == [
            size
            for action, size in zip(history.action, history.size, strict=True)
            if action == Action.SEGMENT_ALLOC
        ]


def test_nothing_happened():
    segment = HeldSegment(MIB, 2 * MIB, 0, True, False, (HeldBlock(MIB, 2 * MIB, 0, State.FREE),))
    assert rewind([segment], NOTHING) == (segment,)


def test_an_unsplit_rest_goes_with_its_block():
    """A block of 12 MiB that 11.5 MiB were asked for, freed within the history."""
    final = HeldSegment(0, 12 * MIB, 0, False, False, (HeldBlock(0, 12 * MIB, 0, State.FREE),))
    history = History([1, 2], [0, 0], [11 * MIB + MIB // 2] * 2, [0, 0])
    (segment,) = rewind([final], history)
    assert segment.blocks == (HeldBlock(0, 12 * MIB, 11 * MIB + MIB // 2, State.ALLOCATED),)


def test_ranges_of_expandable_segments_are_cut_off_and_put_back():
    block = HeldBlock(0, 40 * MIB, 0, State.FREE)
    final = HeldSegment(0, 40 * MIB, 0, False, True, (block,))
    mapped, unmapped = int(Action.SEGMENT_MAP), int(Action.SEGMENT_UNMAP)
    history = History([mapped, unmapped], [20 * MIB, 40 * MIB], [20 * MIB, 20 * MIB], [0, 0])
    assert [(s.address, s.size) for s in rewind([final], history)] == [(0, 20 * MIB), (40 * MIB, 20 * MIB)]


@pytest.mark.parametrize(
    "history",
    [
        History([0], [5], [5], [0]),  # allocated, and not there
        History([2], [0], [5], [0]),  # freed, and still there
        History([1], [0], [5], [0]),
        History([3], [9 * MIB], [2 * MIB], [0]),  # a segment that is not there
        History([3], [0], [20 * MIB], [0]),  # of another size
        History([4], [0], [2 * MIB], [0]),  # freed, and still there
        History([5], [0], [2 * MIB], [0]),
        History([1, 2], [1, 1], [MIB, MIB], [0, 0]),  # overlaps
        History([1, 2], [7 * MIB, 7 * MIB], [MIB, MIB], [0, 0]),  # in no segment
    ],
)
def test_contradictions_are_refused(history):
    block = HeldBlock(0, MIB, MIB, State.ALLOCATED)
    rest = HeldBlock(MIB, MIB, 0, State.FREE)
    with pytest.raises(HeldError):
        rewind([HeldSegment(0, 2 * MIB, 0, True, False, (block, rest))], history)
