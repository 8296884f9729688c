"""What an estimate leaves behind: traces, a snapshot, a picture."""

import json
from pathlib import Path

import pytest

from estimator import snapshot, trace
from estimator.outputs import OutputError, Outputs, largest
from tests.estimator.recording import Recording, silent

MIB = 1024**2


def program(size_mib: int = 30, pid: int = 7) -> trace.Trace:
    recording = Recording("forward")
    recording.alloc(size_mib * MIB)
    return recording.trace(pid=pid, peaks={"allocated": size_mib * MIB, "reserved": size_mib * MIB})


def test_a_kept_trace_is_the_trace(tmp_path):
    one = program()
    Outputs(trace=tmp_path / "kept.json").keep_traces([silent(), one])
    assert trace.read(tmp_path / "kept.json") == one


def test_a_folder_gets_all_traces(tmp_path):
    Outputs(trace=tmp_path).keep_traces([program(pid=7), program(pid=8)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace-7-0.json", "trace-8-0.json"]
    assert {one.pid for one in trace.read_all(tmp_path)} == {7, 8}


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_the_snapshot_and_the_picture_are_of_the_largest(tmp_path, suffix):
    outputs = Outputs(snapshot=tmp_path / "out.pickle", plot=tmp_path / f"out{suffix}")
    outputs.check()
    outputs.write([program(30), program(70), silent()], "train.py")
    assert snapshot.read(tmp_path / "out.pickle").final[0].size == 70 * MIB
    assert "70.0 MiB" in (tmp_path / f"out{suffix}").read_text()
    assert largest([program(30), program(70)]).peaks.reserved == 70 * MIB


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        (Outputs(plot=Path("x.gif")), "one of .png, .svg, .html"),
        (Outputs(plot=Path("/nowhere/x.svg")), "no such folder"),
        (Outputs(snapshot=Path("/nowhere/x.pickle")), "no such folder"),
        (Outputs(trace=Path("/nowhere/x.json")), "no such folder"),
    ],
)
def test_what_cannot_work_is_told_before_the_job_is_run(outputs, reason):
    with pytest.raises(OutputError, match=reason):
        outputs.check()


def test_png_without_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OutputError, match=r"pip install 'gpumem\[plot\]'"):
        Outputs(plot=Path("x.png")).check()


def test_nothing_to_write_and_nowhere_to_write_it(tmp_path):
    with pytest.raises(OutputError, match="no process used the GPU"):
        Outputs(snapshot=tmp_path / "x").write([silent()], "x")
    with pytest.raises(OutputError, match="cannot be written: Is a directory"):
        Outputs(snapshot=tmp_path).write([program()], "x")


def test_nothing_asked_is_nothing_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Outputs().check()
    Outputs().keep_traces([program()])
    Outputs().write([program()], "x")
    assert list(tmp_path.iterdir()) == []
    assert json.loads(program().model_dump_json(by_alias=True))["format"] == 1
