"""What lies outside the allocator: parts, their sources, and what of a trace they follow from."""

from __future__ import annotations

import pytest

from estimator import catalog, outside
from estimator.bounds import Bound
from estimator.catalog import GPU
from estimator.estimate import estimate
from settings import Estimate as Settings
from tests.estimator.recording import Recording

MIB = 1024**2


@pytest.fixture
def gpu() -> GPU:
    return catalog.load().find("a100-40gb")


def trace(**changes):
    recording = Recording("forward")
    recording.alloc(100 * MIB)
    return recording.trace(**changes)


def sizes(gpu: GPU, **changes) -> dict[str, float]:
    return {part.name: part.bytes / MIB for part in outside.parts(gpu, trace(**changes)) if part.bytes}


def test_a_process_that_launches_nothing_has_a_context(gpu):
    assert sizes(gpu) == {"context": gpu.context_mib}


def test_a_convolution_network_takes_what_was_published(gpu):
    """EfficientNet-B0 and ResNet-34 on an A100: 524 MiB beside what the allocator reserves."""
    found = sizes(gpu, kernels=80, libraries=["cublas", "cudnn"])
    assert sum(found.values()) == pytest.approx(524, abs=1)
    assert list(found) == ["context", "modules", "libraries"]


@pytest.mark.parametrize(
    ("ranks", "mib"), [([], 0), ([1], 0), ([2], 544), ([4], 688), ([8, 1], 688), ([8, 2], 688 + 544)]
)
def test_buffers_of_nccl(gpu, ranks, mib):
    assert sizes(gpu, communicators=ranks).get("nccl", 0) == pytest.approx(mib, abs=0.2)


def test_without_nvlink_there_are_fewer_channels(gpu):
    few = catalog.load().find("rtx-3060")
    assert outside.communicator(few, 4) < outside.communicator(gpu, 4) / 5


def test_the_estimate_has_each_part_and_what_hangs_on_nccl(gpu):
    recorded = trace(kernels=9, communicators=[4], invented=["nccl buffers"], world_size=4)
    made = estimate([recorded], gpu, Settings())
    assert made.outside_allocator_bytes == sum(part.bytes for part in made.outside)
    assert made.peak_bytes == made.reserved_peak_bytes + made.outside_allocator_bytes
    buffers = outside.communicator(gpu, 4)
    assert Bound("nccl buffers", "library", buffers) in made.bounded_by
    assert any("nccl 688 MiB" in note for note in made.notes)


def test_what_was_measured_is_not_told_as_an_estimate(gpu):
    source = gpu.source.model_copy(update={"context": "measured on node1, driver 550"})
    made = estimate([trace()], gpu.model_copy(update={"source": source}), Settings())
    assert not any("not measured" in note for note in made.notes)


def test_two_processes_take_twice_as_much(gpu):
    both = outside.together([outside.parts(gpu, trace(kernels=1)), outside.parts(gpu, trace())])
    assert [(part.name, part.bytes // MIB) for part in both] == [
        ("context", 2 * gpu.context_mib), ("modules", 64), ("libraries", 0), ("nccl", 0),
    ]  # fmt: skip
