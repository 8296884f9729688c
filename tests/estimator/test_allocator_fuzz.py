"""The simulator against PyTorch's own allocator, as long as a test may take; `make fuzz` goes on for minutes."""

import sys

import pytest

from estimator import alloc_conf
from tests.estimator.fuzz.campaign import Campaign
from tests.estimator.fuzz.compare import difference, shrink, simulate
from tests.estimator.fuzz.mutations import MUTATIONS
from tests.estimator.fuzz.oracle import LIBRARY, Oracle

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the fake CUDA library is not built")
COMMANDS = 22_000

TEXTS = [
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:19",
    "max_split_size_mb:21",
    "max_split_size_mb: 32 ",
    "max_split_size_mb",
    "max_split_size_mb:",
    "max_split_size_mb=32",
    "max_split_size_mb,32",
    "max_split_size_mb:abc",
    "max_split_size_mb:32abc",
    "max_split_size_mb:-5",
    "max_split_size_mb:99999999999999999999999",
    "nonsense:3",
    "nonsense",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:1.0",
    "garbage_collection_threshold:0.5x",
    "garbage_collection_threshold:nan",
    "garbage_collection_threshold:x",
    "expandable_segments:true",
    "expandable_segments:True",
    "expandable_segments",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[3:2]",
    "roundup_power2_divisions:[256:3]",
    "roundup_power2_divisions:[256:1,512:2",
    "roundup_power2_divisions:[256:1;512:2]",
    "roundup_power2_divisions:[256:1,512:2,>:4]",
    "roundup_power2_divisions:[]",
    "roundup_power2_divisions:[256]",
    "backend:native",
    "backend:foo",
    "backend:",
    "pinned_num_register_threads:3",
    "pinned_num_register_threads:256",
    "pinned_num_register_threads:8",
    "pinned_use_cuda_host_register:True",
    "pinned_use_cuda_host_register:1",
    "pinned_use_background_threads:True",
    "pinned_use_background_threads:yes",
    "max_non_split_rounding_mb:20",
    "max_non_split_rounding_mb:10",
    "large_segment_size_mb:10",
    "large_segment_size_mb:11",
    "large_segment_size_mb:48,max_split_size_mb:30",
    "max_split_size_mb:30,large_segment_size_mb:48",
    "large_segment_size_mb:48,max_non_split_rounding_mb:30",
    "max_non_split_rounding_mb:30,large_segment_size_mb:48",
    "per_process_memory_fraction:0.5",
    "per_process_memory_fraction:1.5",
    "throw_on_cudamalloc_oom:True",
    "throw_on_cudamalloc_oom:1",
    "pinned_free_catch_all:True",
    "pinned_reserve_segment_size_mb:0",
    "graph_capture_record_stream_reuse:True",
    "release_lock_on_cudamalloc:True",
    "release_lock_on_cudamalloc:1",
    "expandable_segments:True,",
    "expandable_segments:True,,",
    "expandable_segments:True max_split_size_mb:32",
    "expandable_segments:True:max_split_size_mb:32",
    ":",
    "expandable_segments:False,max_split_size_mb:64,garbage_collection_threshold:0.8",
    "pinned_max_round_threshold_mb:5",
    "pinned_max_cached_size_mb:x",
    "expandable_segments:[True]",
    "max_split_size_mb:[32]",
    "backend:[native]",
]


@pytest.fixture(scope="module")
def oracle():
    pytest.importorskip("torch")
    oracle = Oracle(sys.executable)
    yield oracle
    oracle.close()


@pytest.fixture(scope="module")
def answered(oracle):
    """Sessions of all settings with what torch answered."""
    campaign = Campaign(oracle.torch_version, seed="test", length=500)
    cut = [(name, campaign.simulate(session)[0]) for name, session in campaign.sessions(COMMANDS)]
    return campaign, [(name, session, *oracle.run(session)) for name, session in cut]


def test_every_observable_agrees_after_every_command(oracle, answered):
    campaign, sessions = answered
    for _, session, theirs, error in sessions:
        found = difference(session, simulate(session, campaign.config(session)), theirs, error)
        assert found is None, str(shrink(found, campaign.config(session), oracle.run))
    assert sum(len(theirs) for _, _, theirs, _ in sessions) >= COMMANDS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_deliberate_error_is_found(answered, mutation):
    campaign, sessions = answered
    with mutation.applied():
        assert any(
            difference(session, simulate(session, campaign.config(session)), theirs, error)
            for name, session, theirs, error in sessions
            if name == mutation.settings
        )


def test_settings_are_refused_as_torch_refuses_them(oracle):
    campaign = Campaign(oracle.torch_version)
    for text in TEXTS:
        session = next(campaign.sessions(1))[1].with_commands([])
        _, error = oracle.run(_With(session, text))
        try:
            alloc_conf.parse(text, campaign.version)
            ours = None
        except alloc_conf.AllocConfError as refused:
            ours = str(refused)
        assert (ours is None) == (error is None), (text, error, ours)
        assert ours is None or ours.strip() in error, text


class _With:
    """A session under settings of any text."""

    def __init__(self, session, text):
        self.reset, self.capacity, self.commands = session.reset, session.capacity, []
        self.conf_text = lambda: text
