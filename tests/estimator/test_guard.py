"""The memory guard: what PyTorch is told, and in which shares a job runs under it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from estimator import alloc_conf, guard
from estimator.allocator import DEFAULT_CONFIG, Action, History, replay
from settings import GIB, MIB

OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
LIMIT = "per_process_memory_fraction:0.250000"


def growing(count: int, step: int = GIB) -> History:
    """Blocks of 1, 2, ... `count` GiB one after the other: what is cached never fits the next."""
    rows = []
    for number in range(1, count + 1):
        rows += [
            (Action.ALLOC, number << 40, number * step),
            (Action.FREE_REQUESTED, number << 40, number * step),
        ]
        rows += [(Action.FREE_COMPLETED, number << 40, number * step)]
    return History(
        [int(row[0]) for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        [0] * len(rows),
    )


def found(history: History, least: int | None, **changes):
    given = {
        "peak_bytes": replay(history).reserved_peak + GIB // 2,
        "least_bytes": least,
        "outside_bytes": GIB // 2,
        "usable_bytes": 40 * GIB,
        "shard_bytes": GIB,
    }
    config = changes.pop("config", DEFAULT_CONFIG)
    version = changes.pop("version", "2.14.1+cu130")
    return guard.find([(history, config)], changes.pop("alloc_conf", ""), version, **(given | changes))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {OLD: LIMIT}),
        ({"PATH": "/bin"}, {OLD: LIMIT}),
        ({OLD: "", NEW: ""}, {OLD: LIMIT}),
        ({OLD: "max_split_size_mb:64,"}, {OLD: f"max_split_size_mb:64,{LIMIT}"}),
        ({NEW: "expandable_segments:True"}, {NEW: f"expandable_segments:True,{LIMIT}"}),
        ({OLD: "backend:native", NEW: "max_split_size_mb:64"}, {OLD: f"backend:native,{LIMIT}"}),
        ({OLD: "per_process_memory_fraction:0.9"}, None),
        ({NEW: "per_process_memory_fraction:0.9"}, None),
        ({OLD: "backend:cudaMallocAsync"}, None),
        ({OLD: "no_such_key:1"}, None),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, None),
    ],
)
def test_the_limit_is_added_to_what_the_user_set(environment, expected):
    assert guard.variables(environment, "2.14.1+cu130", "0.250000") == expected
    if expected:
        parsed = alloc_conf.from_environment({**environment, **expected})
        assert parsed.config.memory_fraction == 0.25


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("2.11.0+cu130", True),
        ("2.15.0a0+git", True),
        ("2.8.0", False),
        ("2.4.1", False),
        (None, False),
        ("", False),
    ],
)
def test_only_a_pytorch_that_knows_it_is_told(version, known):
    assert (guard.variables({}, version, "0.250000") is not None) is known


def test_a_fraction_leaves_room_for_what_lies_outside():
    text = guard.fraction(10 * GIB, GIB // 2, 79 * GIB)
    assert text is not None
    assert 9.5 * GIB - MIB < guard.allocator_bytes(text, 79 * GIB) <= 9.5 * GIB
    assert guard.fraction(GIB // 2, GIB // 2, 79 * GIB) is None
    assert guard.fraction(80 * GIB, GIB // 2, 79 * GIB) is None


def test_a_script_that_changes_the_settings_is_noticed():
    assert guard.same_settings({}, "2.14.1", "")
    assert guard.same_settings({NEW: "max_split_size_mb:64"}, "2.14.1", "max_split_size_mb:64")
    assert not guard.same_settings({}, "2.14.1", "max_split_size_mb:64")
    assert not guard.same_settings({OLD: "nonsense"}, "2.14.1", "")


def test_every_share_is_tried_under_its_very_fraction():
    history = growing(4)  # reserves 10 GiB if it may, runs in 4
    made = found(history, 4 * GIB + GIB // 2)
    assert made == guard.Guard("", 11, (5, 6, 7, 8, 9, 10))
    assert found(history, None) == guard.Guard("", 11, ())
    assert found(history, 3 * GIB) == guard.Guard("", 11, (5, 6, 7, 8, 9, 10)), "what fails is left out"
    for shards in (4, *made.shards):
        text = guard.fraction(shards * GIB, GIB // 2, 40 * GIB)
        rules = alloc_conf.parse(f"{guard.KEY}:{text}").config
        assert (replay(history, 40 * GIB, rules).oom is None) is (shards > 4)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "2.8.0"},
        {"version": None},
        {"alloc_conf": "per_process_memory_fraction:0.5"},
        {"config": None},
        {"config": alloc_conf.parse("garbage_collection_threshold:0.8").config},
        {"usable_bytes": 10 * GIB},
    ],
)
def test_where_it_cannot_be_known_there_is_no_guard(changes):
    assert found(growing(4), 5 * GIB, **changes) is None


def test_the_pytorch_of_the_tests_takes_it():
    program = """
import sys, torch
print(torch.__version__)
torch._C._accelerator_setAllocatorSettings(sys.argv[1])
"""

    def say(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", program, text], capture_output=True, text=True)

    done = say(LIMIT)
    assert done.returncode == 0, done.stderr
    assert guard.variables({}, done.stdout.strip(), "0.250000") == {OLD: LIMIT}
    assert say(f"{guard.KEY}:1.25").returncode != 0
    assert "Unrecognized key" in say(LIMIT.replace("fraction", "part")).stderr
