"""Advice: only what a replay or a sum has shown, the largest saving first."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from estimator import catalog, report
from estimator.advice import _checkpointing, _joined, advise
from estimator.allocator import DEFAULT_CONFIG, replay
from estimator.estimate import estimate
from settings import Estimate as Settings
from tests.estimator.recording import Recording

MIB = 1024**2


@pytest.fixture(scope="module")
def gpu():
    return catalog.load().find("a100-80gb")


def fragmented() -> Recording:
    """Growing batches: each fits no segment of the ones before."""
    recording = Recording("forward")
    for size in (1000, 1100, 1200, 1300):
        recording.free(recording.alloc(size * MIB, in_module=True))
    recording.alloc(1400 * MIB, in_module=True)
    return recording


def test_what_saves_memory_has_the_number_of_its_replay(gpu):
    trace = fragmented().trace()
    made = estimate([trace], gpu, Settings())
    advice = advise(trace, made, gpu)
    (expandable,) = [one for one in advice if "expandable_segments:True" in one.change]
    alone = replay(trace.events, config=replace(DEFAULT_CONFIG, expandable_segments=True)).reserved_peak
    assert expandable.peak_bytes == alone + gpu.context_bytes
    assert expandable.saves_bytes == made.peak_bytes - expandable.peak_bytes > 4000 * MIB
    assert expandable.kind == "replay"
    assert [one.saves_bytes for one in advice] == sorted((one.saves_bytes for one in advice), reverse=True)
    assert all(one.saves_bytes > 0 for one in advice)


def test_arithmetic_is_called_so(gpu):
    trace = fragmented().trace()
    (half,) = [one for one in advise(trace, estimate([trace], gpu, Settings()), gpu) if one.kind != "replay"]
    assert (half.change, half.kind, half.saves_bytes) == ("half the batch", "arithmetic", 700 * MIB)
    assert "trace the job" in half.how


def test_nothing_that_saves_nothing_is_told(gpu):
    recording = Recording()
    weights = recording.alloc(100 * MIB)
    recording.mark("optimizer")
    recording.own("parameters", weights)
    trace = recording.trace()
    assert advise(trace, estimate([trace], gpu, Settings()), gpu) == []


def test_an_option_joins_the_user_s_setting():
    assert _joined("", "a:1") == "a:1"
    assert _joined("b:2,a:3", "a:1") == "b:2,a:1"


def test_the_text_and_the_json(gpu):
    trace = fragmented().trace()
    advice = advise(trace, estimate([trace], gpu, Settings()), gpu)
    console = Console(file=io.StringIO(), width=80)
    report.show_advice(advice, console)
    shown = console.file.getvalue()
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in shown
    assert "(arithmetic: half of" in " ".join(shown.split())
    assert set(advice[0].to_json()) == {"change", "saves_bytes", "peak_bytes", "kind", "how"}
    report.show_advice([], console)
    assert "No setting would save memory." in console.file.getvalue()


def test_checkpointing_keeps_the_inputs_of_layers_and_the_largest_of_them():
    by_module = {
        "model.layers.0": 7, "model.layers.0.mlp": 100, "model.layers.0.attn.q": 20,
        "model.layers.1.mlp": 130, "model.layers.2.mlp": 100, "head": 500, "blocks.0.x": 40,
    }  # fmt: skip
    (found,) = _checkpointing(by_module, 1000)
    assert "3 layers in model.layers" in found.change
    assert (found.saves_bytes, found.peak_bytes, found.kind) == (220, 780, "arithmetic")
    assert not list(_checkpointing(by_module, 1_000_000))
