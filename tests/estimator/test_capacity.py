"""The search for the least capacity, held against a look at every capacity."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.allocator import AllocatorConfig, replay
from estimator.capacity import PAGE, least_capacity
from tests.estimator.recording import Recording
from tests.estimator.test_rewind import STEPS, perform

MIB = 1024**2
EXPANDABLE = AllocatorConfig(expandable_segments=True)


def training(seed: int, steps: int = 4) -> Recording:
    """Steps whose batches differ in size, so that what is cached from one does not serve the next."""
    rng = random.Random(seed)
    recording = Recording()
    weights = [recording.alloc(rng.randint(1, 12 * MIB)) for _ in range(4)]
    for _ in range(steps):
        scale = rng.uniform(0.5, 1.5)
        batch = [recording.alloc(int(scale * rng.randint(1, 24 * MIB))) for _ in range(8)]
        rng.shuffle(batch)
        recording.free(*batch)
    recording.free(*weights)
    return recording


def running(history, config, ceiling):
    """The capacities (pages) in which it runs, by looking at all of them."""
    return [
        pages
        for pages in range(ceiling // PAGE + 1)
        if replay(history, pages * PAGE, config, total=1 << 50).oom is None
    ]


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([AllocatorConfig(), EXPANDABLE]))
def test_the_answer_is_the_least_above_which_every_capacity_is_enough(seed, config):
    history = training(seed).history()
    found = least_capacity(history, config, probes=None)
    runs = running(history, config, found.ceiling)
    assert found.ceiling // PAGE in runs
    assert found.least == min(runs) * PAGE
    assert set(range(found.capacity // PAGE, found.ceiling // PAGE + 1)) <= set(runs)
    assert found.capacity // PAGE - 1 not in runs


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10_000))
def test_a_quick_search_ends_where_it_runs_and_a_page_less_fails(seed):
    history = training(seed).history()
    found = least_capacity(history)
    assert found.retries == replay(history, found.capacity).retries
    assert replay(history, found.capacity).oom is None
    assert replay(history, found.capacity - PAGE).oom is not None
    assert found.replays < 60


def test_more_memory_may_be_not_enough():
    """A job that runs in some capacity and fails in a larger one: the answer is above the failure."""
    surprising = 0
    for seed in range(60):
        history = training(seed, steps=6).history()
        found = least_capacity(history, probes=None)
        if found.least < found.capacity:
            surprising += 1
            assert replay(history, found.least).oom is None
            assert replay(history, found.capacity - PAGE).oom is not None
        if surprising:
            return
    raise AssertionError("none of these jobs shows it")


def test_expandable_segments_need_no_more_than_what_is_in_use():
    recording = Recording()
    for size in (30, 40, 50, 60, 70):
        recording.free(recording.alloc(size * MIB))
    found, expandable = least_capacity(recording.history()), least_capacity(recording.history(), EXPANDABLE)
    assert (found.ceiling, found.capacity) == (250 * MIB, 70 * MIB)
    assert (expandable.ceiling, expandable.capacity) == (80 * MIB, 80 * MIB)  # four pages of 20 MiB
    assert found.retries > 0 == expandable.retries


def test_nothing_needs_nothing():
    assert least_capacity(Recording().history()).capacity == 0


def test_cached_memory_is_not_needed():
    recording = Recording()
    recording.alloc(30 * MIB)
    recording.free(recording.alloc(40 * MIB), recording.alloc(50 * MIB))
    recording.alloc(60 * MIB)
    found = least_capacity(recording.history())
    # 40 and 50 MiB lie side by side in the cache as in the recording: each needs the other's room
    assert (found.capacity, found.retries) == (120 * MIB, 1)


def test_nothing_cached_is_nothing_to_save():
    recording = Recording()
    recording.alloc(30 * MIB)
    found = least_capacity(recording.history())
    assert (found.capacity, found.retries) == (30 * MIB, 0)


@given(STEPS)
def test_law_it_runs_there_and_not_in_a_page_less(steps):
    recording = Recording()
    perform(recording, steps, [], [])
    history = recording.history()
    found = least_capacity(history)
    done = replay(history, found.capacity)
    assert (done.oom, done.retries) == (None, found.retries)
    assert done.allocated_peak <= found.capacity <= replay(history).reserved_peak
    if found.capacity:
        assert replay(history, found.capacity - PAGE).oom is not None
