"""What people and programs are told."""

import io
import json
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.console import Console

from estimator import catalog, report
from estimator.estimate import Estimate, LeastMemory, estimate
from settings import Estimate as Settings
from tests.estimator.recording import Recording

MIB = 1024**2


def made(**changes: object) -> Estimate:
    recording = Recording("forward")
    weights = recording.alloc(3000 * MIB)
    recording.alloc(6000 * MIB, in_module=True)
    recording.free(recording.alloc(1))
    recording.mark("optimizer")
    recording.own("parameters", weights)
    gpu = catalog.load().find("a100-80gb")
    return estimate([recording.trace(**changes)], gpu, Settings(), wall_s=4.25)


def text(shown: Estimate, width: int = 80, colours: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colours, color_system="truecolor" if colours else None
    )
    report.show(shown, console, title="train.sh")
    return console.file.getvalue()


def test_the_json_object_has_the_keys_of_the_contract():
    shown = made(invented=["cudnn workspace"])
    content = json.loads(json.dumps(report.to_json(shown)))
    assert list(content) == [
        "status",
        "peak_bytes",
        "reserved_peak_bytes",
        "allocated_peak_bytes",
        "outside_allocator_bytes",
        "outside",
        "recommended_bytes",
        "shards",
        "shard_bytes",
        "by_owner",
        "by_module",
        "least_bytes",
        "least_retries",
        "least_expandable_bytes",
        "phase_of_peak",
        "steps",
        "trace_events",
        "wall_s",
        "host_memory_bytes",
        "torch_version",
        "gpu",
        "fits",
        "bounded_by",
        "unknown_calls",
        "world_size",
        "per_gpu",
        "guard",
        "notes",
        "inputs",
    ]
    assert content["status"] == "bounded"
    assert content["by_owner"]["parameters"] == 3000 * MIB
    assert sum(content["by_owner"].values()) == content["reserved_peak_bytes"]
    assert content["inputs"] == [{"path": "/home/u/train.py", "size": 120, "mtime_ns": 5, "sha256": None}]
    assert report.failure_to_json("no GPU") == {"status": "failed", "reason": "no GPU"}


def test_the_text_says_it_all_in_80_columns():
    lines = text(made()).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 24
    for line, words in [
        (0, ["train.sh on NVIDIA A100 80GB PCIe", "exact"]),
        (2, ["Peak", "9.11 GiB"]),
        (3, ["reserved", "8.79 GiB", "8.79 GiB allocated"]),
        (4, ["reached in", "step 1, forward"]),
        (5, ["outside", "330.0 MiB", "CUDA context"]),
        (6, ["Recommended", "10.00 GiB", "10 shards of 1.00 GiB"]),
        (8, ["parameters", "2.93 GiB", "32.1 %", "\N{FULL BLOCK}"]),
        (9, ["activations", "5.86 GiB", "64.3 %"]),
    ]:
        assert all(word in lines[line] for word in words), lines[line]
    assert "3 optimizer steps traced in 4.2 s, PyTorch 2.14.1+cu130" in lines[-1]


def test_what_lies_outside_is_one_line():
    shown = made(kernels=50, libraries=["cublas", "cudnn"], communicators=[4])
    line = next(line for line in text(shown).splitlines() if line.startswith("   outside"))
    assert line.split(maxsplit=3)[1:3] == ["1.18", "GiB"]
    assert line.rstrip().endswith("context 330, modules 64, libraries 130, nccl 688")
    parts = report.to_json(shown)["outside"]
    assert sum(part["bytes"] for part in parts.values()) == shown.outside_allocator_bytes
    assert all(part["source"] for part in parts.values())


def test_bars_follow_each_other_over_the_whole_peak():
    lines = [line for line in text(made()).splitlines() if " % " in line]
    columns = [[at for at, char in enumerate(line) if char > "\u2580"] for line in lines]
    assert columns[0][0] + report.BAR_WIDTH - 1 == columns[-1][-1]
    for before, after in pairwise(columns):
        assert after[0] - before[-1] in (0, 1)


def test_a_job_that_does_not_fit():
    recording = Recording("forward")
    recording.alloc(90_000 * MIB)
    shown = text(estimate([recording.trace()], catalog.load().find("a100-80gb"), Settings()))
    assert "does not fit" in shown.splitlines()[0]
    assert "the job does not fit on this GPU" in shown
    assert "needs 88.2 GiB" in shown


def test_notes_are_words_not_markup_and_wrap():
    shown = text(made(end="exception", error={"type": "E", "message": "[red]no[/red] " + "long " * 40}))
    assert "[red]no[/red]" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_colours_only_on_a_terminal():
    assert "\x1b[" not in text(made())
    assert "\x1b[" in text(made(), colours=True)


def test_a_narrow_terminal_still_works():
    assert max(map(len, text(made(), width=40).splitlines())) <= 40


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0.0 KiB"),
        (1536, "1.5 KiB"),
        (MIB, "1.0 MiB"),
        (1023 * MIB, "1023.0 MiB"),
        (1024 * MIB, "1.00 GiB"),
    ],
)
def test_sizes_for_people(count, words):
    assert report.size(count) == words


def test_the_least_memory_is_told_beside_what_the_job_takes():
    whole = made()
    least = LeastMemory(whole.peak_bytes - 2048 * MIB, 3, whole.peak_bytes - 3072 * MIB)
    shown = " ".join(text(replace(whole, least=least)).split())
    assert "Takes 9.1" in shown
    assert "; runs in 7.1" in shown
    assert "freeing its cache 3 times; needs 6.1" in shown
    assert "GiB with expandable_segments:True." in shown
    assert "Takes" not in text(replace(whole, least=None))
    assert report.to_json(replace(whole, least=None))["least_bytes"] is None


def test_layers_that_differ_in_their_number_are_one_row():
    by_module = {"h.0.mlp": 5, "h.1.mlp": 7, "": 4, "h.10.attn": 3, "conv2.bn1": 2}
    assert report.layers(by_module) == [
        ("h.*.mlp", 2, 12), ("", 1, 4), ("h.*.attn", 1, 3), ("conv2.bn1", 1, 2),
    ]  # fmt: skip
    shown = text(replace(made(), by_module={name: size * MIB for name, size in by_module.items()}))
    assert "h.*.mlp" in shown and "2 x" in shown and "12.0 MiB" in shown
    assert "the model itself" in shown
