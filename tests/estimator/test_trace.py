"""Reading traces: good ones, and everything that a hostile or broken one may hold."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import trace
from estimator.allocator import Action
from estimator.trace import Phase, TraceError
from tests.estimator.recording import Recording, silent


@pytest.fixture
def recording() -> Recording:
    recording = Recording()
    weights = recording.alloc(1000)
    recording.mark("forward")
    recording.free(recording.alloc(5000, in_module=True))
    recording.mark("optimizer")
    recording.own("parameters", weights)
    return recording


def test_a_trace_is_read(tmp_path, recording):
    path = tmp_path / "trace-4711.json"
    path.write_text(json.dumps(recording.as_json()))
    read = trace.read(path)
    assert read.program == "train.py"
    assert [mark.phase for mark in read.marks] == [Phase.SETUP, Phase.FORWARD, Phase.OPTIMIZER]
    assert read.events is not None
    assert list(read.events.action) == recording.columns["action"]
    assert read.owned[0].addresses == recording.owned[0]["addresses"]


def test_actions_are_read_by_their_names(recording):
    names = ["oom", "snapshot", *(action.name.lower() for action in Action if action != Action.OOM)]
    columns = recording.columns | {"action": [code + 2 for code in recording.columns["action"]]}
    read = recording.trace(actions=names, events=columns)
    assert read.events.action == recording.columns["action"]
    unknown = recording.trace(actions=["snapshot"] * 8)
    assert set(unknown.events.action) == {-1}


def test_a_process_without_gpu():
    read = silent()
    assert read.events is None
    assert read.reason == "this Python program did not import PyTorch"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": 2}, "format"),
        ({"end": "who knows"}, "end"),
        ({"argv": "train.py"}, "argv"),
        ({"pid": -1}, "pid"),
        ({"pid": "4711"}, "pid"),
        ({"steps": 1.5}, "steps"),
        ({"actions": ["alloc"]}, "action is not in its table"),
        ({"stacks": []}, "stack is not in its table"),
        ({"frames": []}, "frame is not in its table"),
        ({"marks": []}, "first mark"),
        ({"marks": [{"event": 1, "phase": "setup", "step": 0}]}, "first mark"),
        ({"marks": [{"event": 0, "phase": "lunch", "step": 0}]}, "phase"),
        (
            {"marks": [{"event": at, "phase": "setup", "step": 0} for at in (0, 3, 2)], "owned": []},
            "out of order",
        ),
        ({"marks": [{"event": at, "phase": "setup", "step": 0} for at in (0, 10**6)], "owned": []}, "order"),
        ({"owned": [{"mark": 3, "owner": "parameters", "addresses": []}]}, "mark is not in its table"),
        ({"owned": [{"mark": 0, "owner": "slack", "addresses": []}]}, "owner"),
        ({"owned": [{"mark": 0, "owner": "parameters", "addresses": [-4]}]}, "addresses"),
        ({"touched": [{"mark": 9, "owner": "inputs", "address": 1, "bytes": 1}]}, "mark is not in its table"),
        ({"argv": ["x" * 5000]}, "argv"),
    ],
)
def test_what_does_not_hold_together_is_refused(recording, change, complaint):
    with pytest.raises(TraceError, match=complaint) as caught:
        recording.trace(**change)
    assert "trace-4711.json" in str(caught.value)


@pytest.mark.parametrize("column", ["action", "address", "size", "stream", "stack"])
def test_columns_have_one_length_and_hold_numbers(recording, column):
    columns = recording.columns
    for broken in (columns[column][:-1], [*columns[column], -7], ["x", *columns[column][1:]], [None], 3):
        with pytest.raises(TraceError):
            recording.trace(events=columns | {column: broken})


def test_huge_numbers_are_refused(recording):
    with pytest.raises(TraceError):
        recording.trace(events=recording.columns | {"size": [1 << 80] * len(recording.columns["size"])})


def test_texts_are_made_printable(recording):
    read = recording.trace(
        argv=["evil\x1b[31m.py"],
        end="exception",
        error={"type": "ValueError", "message": "a\nb\x07", "file": "train.py", "line": 3},
    )
    assert read.program == "evil\N{REPLACEMENT CHARACTER}[31m.py"
    assert str(read.error).isprintable()
    assert str(read.error).startswith("train.py:3: ValueError: a")


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data):
    with pytest.raises(TraceError):
        trace.parse(data, "trace-1.json")


@given(st.data())
def test_any_one_field_may_be_anything(data):
    recording = Recording()
    recording.own("parameters", recording.alloc(100))
    content = recording.as_json()
    field = data.draw(st.sampled_from(sorted(content)))
    junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    )
    content[field] = data.draw(junk)
    try:
        trace.parse(json.dumps(content).encode(), "trace-1.json")
    except TraceError as error:
        assert "trace-1.json" in str(error)


def test_only_regular_files_are_read(tmp_path):
    real = tmp_path / "real"
    real.write_text("{}")
    (tmp_path / "trace-1.json").symlink_to(real)
    os.mkfifo(tmp_path / "trace-2.json")
    (tmp_path / "trace-3.json").mkdir()
    for path in (*tmp_path.glob("trace-*.json"), tmp_path / "trace-4.json"):
        with pytest.raises(TraceError, match=path.name):
            trace.read(path)


def test_a_file_may_not_be_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "MAX_BYTES", 1024**2)
    path = tmp_path / "trace-1.json"
    path.write_bytes(b" " * (1024**2 + 1))
    with pytest.raises(TraceError, match="more than 1 MiB"):
        trace.read(path)


def test_all_traces_of_a_folder_in_the_order_of_their_ends(tmp_path, recording):
    for pid, when in ((7, 200), (3, 300), (5, 100)):
        path = tmp_path / f"trace-{pid}.json"
        path.write_text(json.dumps(recording.as_json(pid=pid)))
        os.utime(path, (when, when))
    (tmp_path / "trace-9.json.part").write_text("{")
    assert [read.pid for read in trace.read_all(tmp_path)] == [5, 7, 3]
    assert trace.read_all(tmp_path / "nowhere") == []
