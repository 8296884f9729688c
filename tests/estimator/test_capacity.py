"""The least memory in which a history runs."""

from hypothesis import given

from estimator.allocator import replay
from estimator.capacity import PAGE, least_capacity
from tests.estimator.recording import Recording
from tests.estimator.test_rewind import STEPS, perform

MIB = 1024**2


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
