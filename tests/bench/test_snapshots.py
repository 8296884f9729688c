"""The benchmark of replays against snapshots, on files made here."""

import gzip
import json
import sys

import pytest

from bench import snapshots
from estimator.allocator import Action
from estimator.snapshot import Snapshot, dumps
from tests.estimator.recording import Recording

MIB = 1024**2


def recorded(segment_mib: int = 30) -> Snapshot:
    recording = Recording()
    recording.free(recording.alloc(30 * MIB))
    recording.alloc(50 * MIB)
    sizes = recording.columns["size"]
    sizes[0] = segment_mib * MIB  # what was recorded for the first block
    found = Snapshot.of_trace(recording.trace())
    assert found.events.action[0] == Action.SEGMENT_ALLOC
    return found


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    def run_on_folder(*options):
        monkeypatch.setattr(sys, "argv", ["snapshots", str(tmp_path), *options])
        status = snapshots.main()
        return status, capsys.readouterr()

    return run_on_folder


def test_a_snapshot_that_replays_exactly(tmp_path, run):
    (tmp_path / "a.pickle").write_bytes(dumps(recorded()))
    status, out = run()
    assert status == 0
    assert out.out.splitlines()[-1] == "1/1 exact"


def test_one_whose_segments_follow_other_rules_and_a_broken_one(tmp_path, run):
    (tmp_path / "a.pickle").write_bytes(dumps(recorded()))
    (tmp_path / "b.pickle").write_bytes(dumps(recorded(segment_mib=40)))
    (tmp_path / "c.pickle").write_bytes(b"nothing")
    status, out = run()
    assert status == 1
    assert "DIFFERS" in out.out
    assert out.out.splitlines()[-1] == "1/3 exact"
    assert "c.pickle: SnapshotError" in out.err


def test_traces_as_json_begin_with_what_was_held(tmp_path, run):
    found = recorded()
    events = found.events
    rows = [
        [Action(row[0]).name.lower(), *row[1:]]
        for row in zip(events.action, events.address, events.size, events.stream, strict=True)
    ]
    segments = [
        {
            "address": segment.address, "total_size": segment.size, "stream": 0, "is_expandable": False,
            "segment_type": "small" if segment.is_small else "large",
            "blocks": [[b.address, b.size, b.requested, b.state] for b in segment.blocks],
        }
        for segment in found.final
    ]  # fmt: skip
    data = {"events": rows[2:], "segments_final": segments, "allocator_settings": {}}
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(json.dumps(data).encode()))
    status, out = run("--json")
    assert status == 0
    (row,) = json.loads(out.out)["rows"]
    assert (row["held_segments"], row["recorded_segments"]) == (1, 1)
    assert row["recorded_peak"] == row["replayed_peak"] == 80 * MIB
