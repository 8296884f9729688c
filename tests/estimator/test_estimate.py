"""From traces to estimates: sums, margins, shards, doubts and refusals."""

import pytest

from estimator import catalog
from estimator.catalog import GPU
from estimator.estimate import Estimate, EstimateError, NotTraining, estimate
from settings import Estimate as Settings
from tests.estimator.recording import Recording, silent

MIB, GIB = 1024**2, 1024**3


@pytest.fixture(scope="module")
def gpu() -> GPU:
    return catalog.load().find("a100-80gb")


def training(*sizes_mib: int) -> Recording:
    """Allocations that are never freed, in MiB."""
    recording = Recording("forward")
    for size in sizes_mib:
        recording.alloc(size * MIB)
    return recording


def notes(made: Estimate) -> str:
    return "\n".join(made.notes)


def test_the_parts_of_an_exact_estimate(gpu):
    made = estimate([training(1000, 24).trace()], gpu, Settings(), wall_s=4.5)
    assert made.status == "exact"
    assert made.fits
    assert made.reserved_peak_bytes == made.allocated_peak_bytes == 1024 * MIB
    assert made.outside_allocator_bytes == gpu.context_bytes
    assert made.peak_bytes == 1024 * MIB + gpu.context_bytes
    assert sum(made.by_owner.values()) == made.reserved_peak_bytes
    assert (made.steps, made.wall_s, made.torch_version) == (3, 4.5, "2.14.1+cu130")
    assert made.gpu == "NVIDIA A100 80GB PCIe"
    assert [file.path for file in made.inputs] == ["/home/u/train.py"]


def test_the_margin_is_a_fraction_but_not_too_little_and_shards_are_whole(gpu):
    context = gpu.context_mib
    settings = Settings(margin=0.1, margin_mib=100, shard_mib=1000)
    small = estimate([training(900 - context).trace()], gpu, settings)
    assert (small.shards, small.recommended_bytes) == (1, 1000 * MIB)
    more = estimate([training(902 - context).trace()], gpu, settings)
    assert more.shards == 2
    large = estimate([training(10_000 - context).trace()], gpu, settings)
    assert (large.shards, large.shard_bytes, large.recommended_bytes) == (11, 1000 * MIB, 11_000 * MIB)


def test_a_bounded_estimate_has_a_wider_margin(gpu):
    settings = Settings(margin=0.0, margin_bounded=0.5, margin_mib=0, shard_mib=1)
    recording = training(10_000 - gpu.context_mib)
    assert estimate([recording.trace()], gpu, settings).shards == 10_000
    assert estimate([recording.trace(invented=["cudnn workspace"])], gpu, settings).shards == 15_000


def test_no_more_shards_than_the_gpu_has(gpu):
    made = estimate([training(78 * 1024).trace()], gpu, Settings())
    assert made.fits
    assert made.shards == 80


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (
            {"invented": ["cudnn workspace", "cufft workspace"]},
            "were assumed: cudnn workspace, cufft workspace",
        ),
        ({"unknown_calls": [f"nccl{n}" for n in range(8)]}, "nccl4 and 3 more"),
        ({"end": "script", "steps": 0}, "no optimizer step was taken"),
        ({"end": "steps", "steps": 1}, "only one step"),
        ({"end": "signal", "steps": 2}, "was stopped after 2 steps"),
        ({"end": "exception", "steps": 1}, "failed after 1 step: no reason known"),
        ({"gpu": "NVIDIA H200"}, "traced for another GPU: NVIDIA H200"),
    ],
)
def test_what_makes_an_estimate_bounded_is_told(gpu, change, note):
    made = estimate([training(100).trace(**change)], gpu, Settings())
    assert made.status == "bounded"
    assert note in notes(made)


def test_a_script_that_ends_by_itself_is_as_good_as_enough_steps(gpu):
    assert estimate([training(100).trace(end="script", steps=1)], gpu, Settings()).status == "exact"


def test_a_job_that_does_not_fit_is_not_recommended(gpu):
    made = estimate([training(60_000, 40_000).trace()], gpu, Settings())
    assert not made.fits
    assert made.recommended_bytes is None
    assert made.shards is None
    assert made.reserved_peak_bytes == 100_000 * MIB
    assert made.notes[0] == "needs 98.0 GiB, and NVIDIA A100 80GB PCIe offers 79.1 GiB"


def test_a_job_that_fits_only_without_its_cache(gpu):
    recording = training(30_000)
    recording.free(recording.alloc(40_000 * MIB))
    recording.alloc(42_000 * MIB)
    made = estimate([recording.trace()], gpu, Settings())
    assert made.fits
    assert made.reserved_peak_bytes == 72_000 * MIB
    assert "frees cached memory" in notes(made)


def test_a_limit_of_mps_decides_what_fits_but_lowers_no_peak(gpu):
    recording = training(30_000)
    recording.free(recording.alloc(4_000 * MIB))
    recording.alloc(4_200 * MIB)
    free = estimate([recording.trace()], gpu, Settings())
    held = estimate([recording.trace(memory_limit=35_000 * MIB)], gpu, Settings(), guarded=True)
    assert held.fits
    assert "frees cached memory" in notes(held)
    assert (held.peak_bytes, held.status, held.guard) == (free.peak_bytes, "bounded", None)
    assert "only a client of MPS is held to it" in notes(held)
    small = estimate([recording.trace(memory_limit=30 * GIB)], gpu, Settings())
    assert not small.fits
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT of NVIDIA A100 80GB PCIe offers 30.0 GiB" in small.notes[0]


def test_other_allocator_settings_count_as_recorded(gpu):
    """Expandable segments: the history shows how they grew; a replay under the default rules would be wrong."""
    recording = Recording("forward")
    recording.event(5, 0, 44 * MIB)
    recording.event(0, 0, 33 * MIB)
    read = recording.trace(alloc_conf="expandable_segments:True")
    made = estimate([read], gpu, Settings())
    assert (made.reserved_peak_bytes, made.status) == (44 * MIB, "exact")
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in notes(made)
    unexplained = estimate([recording.trace()], gpu, Settings())
    assert (unexplained.reserved_peak_bytes, unexplained.status) == (44 * MIB, "bounded")
    assert "rules that are not known here" in notes(unexplained)


def test_processes_one_after_another_count_by_the_largest(gpu):
    first = training(100).trace(argv=["a.py"], started_ns=1, ended_ns=5)
    second = training(300).trace(argv=["b.py"], started_ns=5, ended_ns=9)
    made = estimate([first, silent(), second], gpu, Settings())
    assert (made.reserved_peak_bytes, made.status) == (300 * MIB, "exact")


def test_processes_side_by_side_on_one_gpu_are_added(gpu):
    first = training(100).trace(pid=1, started_ns=1, ended_ns=6)
    second = training(300).trace(pid=2, started_ns=5, ended_ns=9)
    made = estimate([first, second], gpu, Settings())
    assert made.reserved_peak_bytes == made.allocated_peak_bytes == 400 * MIB
    assert made.outside_allocator_bytes == 2 * gpu.context_bytes
    assert sum(made.by_owner.values()) == made.reserved_peak_bytes
    assert made.status == "bounded"
    assert "2 processes use GPU 0 at the same time" in notes(made)


def test_of_several_gpus_the_fullest_counts_and_all_are_told(gpu):
    traces = [training(size).trace(device=device) for device, size in enumerate((100, 300, 200))]
    made = estimate(traces, gpu, Settings())
    assert (made.reserved_peak_bytes, made.status) == (300 * MIB, "exact")
    assert [(one.gpu, one.reserved_peak_bytes // MIB) for one in made.per_gpu] == [
        (0, 100),
        (1, 300),
        (2, 200),
    ]


def test_ranks_are_told(gpu):
    traces = [training(100).trace(world_size=8), training(90).trace(device=2, rank=4, world_size=8)]
    made = estimate(traces, gpu, Settings())
    assert (made.world_size, [one.rank for one in made.per_gpu]) == (8, [0, 4])


def test_notes_name_the_process_if_there_are_several(gpu):
    traces = [
        training(100).trace(argv=["a.py"], invented=["cufft workspace"]),
        training(300).trace(argv=["b.py"]),
    ]
    assert (
        "a.py: answers of the fake CUDA device were assumed: cufft workspace"
        in estimate(traces, gpu, Settings()).notes
    )


def test_a_helper_that_did_not_use_the_gpu_changes_nothing(gpu):
    alone = estimate([training(100).trace()], gpu, Settings())
    assert estimate([silent(), training(100).trace()], gpu, Settings()) == alone
    failed = estimate([silent(end="exception"), training(100).trace()], gpu, Settings())
    assert "prepare.py failed: no reason known" in notes(failed)
    assert failed.status == "bounded"


def test_a_process_that_failed_at_once_leaves_the_others_their_estimate(gpu):
    traces = [
        training(500).trace(argv=["a.py"], end="exception", steps=0),
        training(100).trace(argv=["b.py"]),
    ]
    made = estimate(traces, gpu, Settings(), failures=["the job ended with exit code 1"])
    assert (made.reserved_peak_bytes, made.status) == (100 * MIB, "bounded")
    assert "a.py failed: no reason known" in made.notes
    assert "the job ended with exit code 1" in made.notes


def test_what_another_framework_takes_beside_is_told_as_unknown(gpu):
    jax = silent(argv=["jax.py"], end="untraceable", reason="this program uses JAX, not PyTorch")
    made = estimate([training(100).trace(), jax], gpu, Settings())
    assert made.status == "bounded"
    assert "jax.py: this program uses JAX, not PyTorch: what it takes of the GPU is not counted" in made.notes


@pytest.mark.parametrize(
    ("traces", "kind", "reason"),
    [
        ([], NotTraining, "started no Python program"),
        ([silent()], NotTraining, "prepare.py: this Python program did not import PyTorch"),
        ([silent(torch_version="2.14.1+cpu")], NotTraining, "built without CUDA"),
        (
            [silent(torch_version="2.14.1+cu130", cuda_version="13.0", reason="it stayed on the CPU")],
            NotTraining,
            "prepare.py: it stayed on the CPU",
        ),
        ([Recording().trace()], NotTraining, "did not use the GPU"),
        ([silent(end="signal")], EstimateError, "was stopped before it used the GPU"),
        (
            [
                silent(),
                silent(
                    end="exception", error={"type": "KeyError", "message": "'lr'", "file": "a.py", "line": 3}
                ),
            ],
            EstimateError,
            "prepare.py failed: a.py:3: KeyError: 'lr'",
        ),
    ],
)
def test_without_gpu_there_is_no_estimate_but_a_reason(gpu, traces, kind, reason):
    with pytest.raises(EstimateError, match=reason) as caught:
        estimate(traces, gpu, Settings())
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"end": "exception", "steps": 0}, "train.py failed: no reason known"),
        ({"end": "signal", "steps": 0}, "train.py was stopped after 0 steps"),
        ({"end": "signal", "steps": 1}, "train.py was stopped after 1 step, at least 2"),
        ({"complete": False}, "trace fewer steps"),
    ],
)
def test_a_run_that_ended_too_early_gives_no_estimate(gpu, change, reason):
    with pytest.raises(EstimateError, match=reason):
        estimate([training(100).trace(**change)], gpu, Settings())


def test_a_trace_that_contradicts_itself_gives_no_estimate(gpu):
    recording = training(100)
    recording.event(1, 12345, 0)
    with pytest.raises(EstimateError, match=r"train\.py: the trace contradicts itself"):
        estimate([recording.trace()], gpu, Settings())


def test_an_estimated_context_is_told(gpu):
    assert f"but estimated: context {gpu.context_mib} MiB" in notes(
        estimate([training(1).trace()], gpu, Settings())
    )
    measured = gpu.model_copy(update={"source": gpu.source.model_copy(update={"context": "measured"})})
    assert estimate([training(1).trace()], measured, Settings()).notes == ()


def caching() -> Recording:
    """3000 MiB that stay; 4000 and 5000 MiB that are cached when 6000 MiB are asked for."""
    recording = training(3000)
    recording.free(recording.alloc(4000 * MIB))
    recording.free(recording.alloc(5000 * MIB))
    recording.alloc(6000 * MIB)
    return recording


def test_the_least_memory_that_a_job_runs_in(gpu):
    made = estimate([caching().trace()], gpu, Settings())
    assert made.reserved_peak_bytes == 18_000 * MIB
    assert made.least is not None
    least = made.least.bytes - gpu.context_bytes
    assert 9000 * MIB <= least <= 9000 * MIB + 180 * MIB
    assert made.least.retries == 2
    assert made.least.expandable_bytes <= made.least.bytes


def test_the_least_can_be_what_is_recommended(gpu):
    settings = Settings(margin=0.0, margin_mib=0, shard_mib=1)
    takes = estimate([caching().trace()], gpu, settings)
    least = estimate([caching().trace()], gpu, settings.model_copy(update={"reserve": "least"}))
    assert takes.recommended_bytes == takes.peak_bytes
    assert least.least is not None
    assert least.recommended_bytes == least.least.bytes
    assert "has to be held to it" in notes(least)


def test_a_long_trace_is_searched_only_if_the_recommendation_needs_it(gpu, monkeypatch):
    monkeypatch.setattr("estimator.estimate.LEAST_EVENTS", 3)
    assert estimate([caching().trace()], gpu, Settings()).least is None
    assert estimate([caching().trace()], gpu, Settings(reserve="least")).least is not None
