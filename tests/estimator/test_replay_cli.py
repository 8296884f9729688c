"""`gpumem replay` on traces and snapshots."""

import json
import pickle

import pytest
import typer
from typer.testing import CliRunner

from estimator import snapshot
from estimator.allocator import Action
from estimator.cli import app
from estimator.replay_cli import parse_size
from tests.estimator.recording import Recording

MIB, GIB = 1024**2, 1024**3


def job() -> Recording:
    """30 MiB stay, 40 and 50 MiB are cached, then 60 MiB are needed."""
    recording = Recording()
    recording.alloc(30 * MIB)
    recording.free(recording.alloc(40 * MIB), recording.alloc(50 * MIB))
    recording.alloc(60 * MIB)
    return recording


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace-4711.json"
    path.write_text(json.dumps(job().as_json()))
    return path


@pytest.fixture
def pickled(tmp_path):
    path = tmp_path / "out.pickle"
    path.write_bytes(snapshot.dumps(snapshot.Snapshot.of_trace(job().trace())))
    return path


def gpumem(*arguments):
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


def replayed(*arguments) -> dict:
    done = gpumem(*arguments, "--json")
    return json.loads(done.stdout)["replays"][0] | {"status": done.exit_code}


def test_trace_folder_and_snapshot_tell_the_same(trace, pickled):
    answers = [replayed(path) for path in (trace, trace.parent, pickled)]
    assert {answer["reserved_peak_bytes"] for answer in answers} == {180 * MIB}
    assert [answer["name"] for answer in answers] == ["train.py", "train.py", "out.pickle"]
    assert [answer["torch_version"] for answer in answers] == ["2.14.1+cu130"] * 2 + [None]
    assert answers[0]["fragmentation_at_peak"] == {"cached_bytes": 90 * MIB, "inactive_split_bytes": 0}
    assert (answers[0]["segments"], answers[0]["retries"], answers[0]["oom"]) == (4, 0, None)
    assert answers[0]["as_recorded"] is True


def test_on_a_smaller_device_the_cache_is_freed(trace):
    answer = replayed(trace, "--capacity", "130MiB")
    assert (answer["status"], answer["retries"], answer["reserved_peak_bytes"]) == (0, 1, 120 * MIB)
    text = gpumem(trace, "--capacity", "130MiB").stdout
    assert "train.py: runs after freeing its cache" in text


def test_where_memory_runs_out(trace):
    answer = replayed(trace, "--capacity", "100MiB")
    assert answer["status"] == 3
    assert answer["oom"]["requested_bytes"] == 50 * MIB
    assert answer["oom"]["stack"] == [["train.py", 7, "<module>"]]
    done = gpumem(trace, "--capacity", "100MiB")
    assert "runs out of memory" in done.stdout
    assert "train.py:7 in <module>" in done.stdout


def test_a_thread_without_python_tells_what_ran_before(tmp_path):
    recording = job()
    allocs = [at for at, action in enumerate(recording.columns["action"]) if action == Action.ALLOC]
    recording.columns["stack"][allocs[2]] = -1
    path = tmp_path / "trace-1.json"
    path.write_text(json.dumps(recording.as_json()))
    oom = replayed(path, "--capacity", "100MiB")["oom"]
    assert (oom["event"], oom["stack_is_before"]) == (allocs[2], True)
    assert oom["stack"] == [["train.py", 7, "<module>"]]
    assert "the last Python before" in gpumem(path, "--capacity", "100MiB").stdout


def test_a_fraction_is_a_part_of_the_capacity(trace):
    assert replayed(trace, "--capacity", "260MiB", "--fraction", "0.5")["retries"] == 1
    assert replayed(trace, "--capacity", "200MiB", "--fraction", "0.5")["status"] == 3
    done = gpumem(trace, "--fraction", "0.5")
    assert done.exit_code == 2
    assert "--capacity" in done.output


def test_what_cannot_be_replayed_is_told_in_one_line(tmp_path, trace):
    hostile = tmp_path / "hostile.pickle"
    hostile.write_bytes(pickle.dumps(print))
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, reason in (
        (tmp_path / "none", "cannot be read: No such file"),
        (hostile, "would run code"),
        (empty, "no trace of a program"),
    ):
        done = gpumem(path)
        assert done.exit_code == 1
        assert reason in done.stderr
        assert len(done.stderr.splitlines()) == 1
    done = gpumem(hostile, "--json")
    assert json.loads(done.stdout)["status"] == "failed"


@pytest.mark.parametrize(
    ("text", "size"),
    [("16GiB", 16 * GIB), ("16G", 16 * GIB), ("0.5 gib", GIB // 2), ("512MiB", 512 * MIB), ("1024", 1024)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "0", "16GHz", "1e3"])
def test_sizes_that_are_none(text):
    with pytest.raises(typer.BadParameter, match="16GiB"):
        parse_size(text)


def test_other_settings(trace):
    """Sizes that grow: one segment that grows takes no more than what is in use at once."""
    answer = replayed(trace, "--alloc-conf", "expandable_segments:True")
    assert answer["alloc_conf"] == "expandable_segments:True"
    assert answer["reserved_peak_bytes"] == 120 * MIB
    assert replayed(trace)["alloc_conf"] == ""


def test_settings_that_pytorch_refuses(trace):
    done = gpumem(trace, "--alloc-conf", "max_split_size_mb:5")
    assert done.exit_code == 1
    assert done.stderr.startswith("gpumem: --alloc-conf max_split_size_mb:5: PyTorch would not start: ")
    assert len(done.stderr.splitlines()) == 1


def test_the_version_decides_what_is_understood(trace):
    assert gpumem(trace, "--alloc-conf", "large_segment_size_mb:64").exit_code == 0
    assert gpumem(trace, "--alloc-conf", "large_segment_size_mb:64", "--torch", "2.6.0").exit_code == 1


def test_what_the_driver_does_is_not_known(trace):
    answer = replayed(trace, "--alloc-conf", "backend:cudaMallocAsync")
    assert answer["native"] is False
    assert "leaves the work to the driver" in gpumem(trace, "--alloc-conf", "backend:cudaMallocAsync").stdout
