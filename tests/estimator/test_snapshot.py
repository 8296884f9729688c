"""Memory snapshots: those of a real PyTorch are read, ours are opened by its tools, broken ones refused."""

import copy
import io
import json
import os
import pickle
import pickletools
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from hypothesis import given

from estimator import recorded_by, snapshot, trace
from estimator.allocator import replay
from estimator.held import State
from tests.estimator.recording import Recording
from tests.estimator.test_rewind import STEPS, held, perform

MIB = 1024**2
ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "estimator" / "fake_cuda" / "lib" / "libgpumem_cuda.so"
# what the `unpickle` of torch/utils/viz/MemoryViz.js knows
VISUALISER = {
    "PROTO", "FRAME", "MARK", "STOP", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "NONE", "NEWTRUE",
    "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "EMPTY_DICT",
    "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LIST", "DICT", "APPEND", "APPENDS",
    "SETITEM", "SETITEMS",
}  # fmt: skip

PROGRAM = """
import json, sys, torch
torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=int(sys.argv[2]))
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(3000, 512, device="cuda")).square().mean().backward()
    optimizer.step()
graph = torch.cuda.CUDAGraph()
x = torch.randn(3000, 512, device="cuda")
with torch.cuda.graph(graph):
    y = model(x).relu()
z = [torch.empty_like(y) for _ in range(3)]
torch.cuda.memory._dump_snapshot(sys.argv[1])
print(json.dumps([torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()]))
"""


def recorded(*steps) -> snapshot.Snapshot:
    recording = Recording()
    perform(recording, steps, [], [])
    return snapshot.Snapshot.of_trace(recording.trace())


def small() -> snapshot.Snapshot:
    return recorded(("alloc", 100, 0), ("alloc", 30 * MIB, 1), ("free", 0, True), ("alloc", 11 * MIB + 5, 0))


@given(STEPS)
def test_law_what_is_written_is_read(steps):
    if not any(step[0] == "alloc" for step in steps):
        return
    recording = Recording()
    perform(recording, steps, [], [])
    written = snapshot.Snapshot.of_trace(recording.trace())
    read = snapshot.parse(snapshot.dumps(written), "x.pickle")
    frames = [[written.frames[frame] for frame in stack] for stack in written.stacks]
    assert read.final == written.final == held(recording)
    assert read.initial == ()
    assert list(read.events.address) == list(written.events.address)
    for event in range(len(written.events)):
        assert read.stack(event) == written.stack(event)
    assert len(frames) == len(written.stacks)


def test_the_visualiser_knows_all_that_is_written():
    used = {opcode.name for opcode, _, _ in pickletools.genops(snapshot.dumps(small()))}
    assert used <= VISUALISER


def test_pytorch_s_own_tools_open_what_is_written():
    visualiser = pytest.importorskip("torch.cuda._memory_viz")
    ours = small()
    data = pickle.loads(snapshot.dumps(ours))
    text = visualiser.segsum(data)
    assert "segments: 3" in text
    assert "total_reserved: 44.0MiB" in text
    shown = io.StringIO()
    with redirect_stdout(shown):
        assert "<html>" in visualiser.trace_plot(copy.deepcopy(data))
        assert "<html>" in visualiser.segment_plot(copy.deepcopy(data))
    assert "30.0MiB" in visualiser.trace(data)
    lines = visualiser.memory(data, format_flamegraph=lambda text: text)
    assert f"stream_0;active_allocated;train.py:7:<module> {11 * MIB + 5}" in lines


def spoil(change) -> bytes:
    data = pickle.loads(snapshot.dumps(small()))
    return pickle.dumps(change(data) or data)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: [1], "the snapshot is missing or not a dict"),
        (lambda data: data.pop("segments") and None, "segments is missing"),
        (lambda data: data.update(device_traces=5), "device_traces is missing or not a list"),
        (lambda data: data.update(device_traces=[[7]]), "not a dict"),
        (lambda data: data["device_traces"][0][0].update(size=-1), "not a number"),
        (lambda data: data["device_traces"][0][0].update(size=True), "not a number"),
        (lambda data: data["device_traces"][0][1].update(addr="x"), "not a number"),
        (lambda data: data["device_traces"][0][1].update(frames=[3]), "a frame"),
        (lambda data: data["device_traces"][0][1].update(frames=[{"name": "f", "filename": 3}]), "no file"),
        (lambda data: data["segments"][0].update(total_size=5), "do not fill"),
        (lambda data: data["segments"][0]["blocks"][0].update(state="odd"), "state"),
        (lambda data: data["segments"].pop() and None, "not where it should be|nowhere|no segment"),
        (lambda data: data.update(device_traces=[], segments=[]), "holds nothing"),
        (lambda data: data["device_traces"].append(data["device_traces"][0]), "several devices.*0, 1"),
    ],
)
def test_broken_snapshots_are_refused_in_one_line(change, reason):
    with pytest.raises(snapshot.SnapshotError, match=reason) as caught:
        snapshot.parse(spoil(change), "x.pickle")
    assert str(caught.value).startswith("x.pickle: ")
    assert "\n" not in str(caught.value)


def test_a_device_is_chosen():
    def second(data):
        data["device_traces"].append([])
        data["device_traces"].reverse()
        for segment in data["segments"]:
            segment["device"] = 1

    found = snapshot.parse(spoil(second), "x")
    assert (found.device, len(found.events)) == (1, len(small().events))
    with pytest.raises(snapshot.SnapshotError, match="nothing of device 3"):
        snapshot.parse(spoil(second), "x", device=3)


def test_texts_of_a_snapshot_cannot_harm_a_terminal():
    def colour(data):
        data["device_traces"][0][1]["frames"] = [{"filename": "\x1b[2Jx.py", "line": 1, "name": "f"}]
        data["allocator_settings"] = {"PYTORCH_CUDA_ALLOC_CONF": "a\nb"}

    found = snapshot.parse(spoil(colour), "x")
    assert found.stack(1) == [("\N{REPLACEMENT CHARACTER}[2Jx.py", 1, "f")]
    assert "\n" not in found.alloc_conf


def test_files_that_are_none(tmp_path):
    with pytest.raises(snapshot.SnapshotError, match=r"none\.pickle: cannot be read: No such file"):
        snapshot.read(tmp_path / "none.pickle")
    with pytest.raises(snapshot.SnapshotError):
        snapshot.read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(snapshot.SnapshotError, match="not a regular file"):
        snapshot.read(tmp_path / "pipe")


@pytest.mark.skipif(not LIBRARY.exists(), reason="the fake CUDA library is not built")
@pytest.mark.parametrize(("entries", "conf"), [(100_000, ""), (200, "expandable_segments:True")])
def test_pytorch_s_own_snapshots(tmp_path, entries, conf):
    """All of the history, or the last entries of it: what is live at its end is the same."""
    pytest.importorskip("torch")
    device = {
        "name": "NVIDIA A100", "uuid": "GPU-00000000-0000-0000-0000-000000000000", "memory_bytes": 80 << 30,
        "context_bytes": 0, "compute_capability": [8, 0], "sm_count": 108, "index": 0,
    }  # fmt: skip
    settings = {"library": str(LIBRARY), "devices": [device], "enforce_limit": False, "node_dir": None}
    (tmp_path / "tracer.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "out.pickle", str(entries)],
        env=os.environ
        | {"PYTHONPATH": str(ROOT / "estimator" / "tracer" / "inject"), "PYTORCH_CUDA_ALLOC_CONF": conf}
        | {"GPUMEM_TRACER": str(tmp_path / "tracer.json")},
        check=True, timeout=100, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    reserved, allocated, at_end = json.loads(done.stdout)
    found = snapshot.read(tmp_path / "out.pickle")
    assert found.alloc_conf == conf
    in_use = [b.size for segment in found.final for b in segment.blocks if b.state is State.ALLOCATED]
    assert sum(in_use) == at_end
    if not conf:
        assert found.initial == ()
        result = replay(found.events)
        assert (result.reserved_peak, result.allocated_peak) == (reserved, allocated)
        assert {pool > 0 for pool in found.events.pool} == {False, True}
        assert {segment.pool for segment in found.final} == {0, 1}
        assert result.busiest_event is not None
        assert any(file == "<string>" for file, _, _ in found.frames)
    else:
        assert found.initial != ()
        assert len(found.events) <= entries
        expandable = recorded_by.candidates(conf)
        assert recorded_by.find(found.events, expandable, found.initial)[1] == expandable[0]


def test_a_trace_that_contradicts_itself_has_no_snapshot():
    recording = Recording()
    address = recording.alloc(5)
    recording.free(address)
    recording.event(trace.Action.FREE_REQUESTED, address, 5)
    with pytest.raises(snapshot.HeldError):
        snapshot.Snapshot.of_trace(recording.trace())
