"""Whether replays of memory histories that were recorded elsewhere take the same segments.

    python -m bench.snapshots FOLDER [--json]

FOLDER holds snapshots of PyTorch (`*.pickle`, of `torch.cuda.memory._dump_snapshot`) and traces taken from
such (`*.json.gz`: `events` as [action, address, bytes, stream, ...], `segments_final`, `allocator_settings`).
Each is replayed from what was held when its history begins. It is exact when the replay takes segments of
the same sizes in the same order as was recorded, and reserves the same at its peak. The exit status is 0
if all are.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from estimator import recorded_by
from estimator.allocator import Action
from estimator.held import HeldBlock, HeldSegment, State
from estimator.snapshot import Events, Snapshot, SnapshotError, read

GROWING, SHRINKING = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP), (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(frozen=True)
class Row:
    """One file; sizes in bytes."""

    name: str
    events: int
    held_segments: int
    recorded_segments: int
    recorded_peak: int
    replayed_peak: int
    same_segments: bool
    seconds: float

    @property
    def exact(self) -> bool:
        """Whether the replay is what was recorded."""
        return self.same_segments and self.recorded_peak == self.replayed_peak


def from_json(path: Path) -> Snapshot:
    """A trace that was taken from a snapshot."""
    data: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    codes = {action.name.lower(): int(action) for action in Action}
    rows = [event for event in data["events"] if event[0] in codes]
    events = Events(
        [codes[row[0]] for row in rows],
        *([row[column] for row in rows] for column in (1, 2, 3)),
        stack=[-1] * len(rows),
    )
    final = tuple(
        HeldSegment(
            segment["address"],
            segment["total_size"],
            segment["stream"],
            segment["segment_type"] == "small",
            segment["is_expandable"],
            tuple(HeldBlock(at, size, asked, State(state)) for at, size, asked, state in segment["blocks"]),
        )
        for segment in data["segments_final"]
    )
    conf = data["allocator_settings"].get("PYTORCH_CUDA_ALLOC_CONF") or ""
    return Snapshot(events, (), (), final, conf)


def recorded_peak(snapshot: Snapshot) -> int:
    """The most that the recording allocator had reserved (bytes)."""
    reserved = peak = sum(segment.size for segment in snapshot.initial)
    for action, size in zip(snapshot.events.action, snapshot.events.size, strict=True):
        if action in GROWING:
            reserved += size
            peak = max(peak, reserved)
        elif action in SHRINKING:
            reserved -= size
    return peak


def measure(path: Path) -> Row:
    """Replays one file under the rules that it may have been recorded by, until one is exact."""
    snapshot = read(path) if path.suffix == ".pickle" else from_json(path)
    start = time.perf_counter()
    configs = recorded_by.candidates(snapshot.alloc_conf)
    replayed, config = recorded_by.find(snapshot.events, configs, snapshot.initial)
    return Row(
        name=path.name,
        events=len(snapshot.events),
        held_segments=len(snapshot.initial),
        recorded_segments=len(recorded_by.segments_taken(snapshot.events)),
        recorded_peak=recorded_peak(snapshot),
        replayed_peak=replayed.reserved_peak,
        same_segments=config is not None,
        seconds=time.perf_counter() - start,
    )


def main() -> int:
    """Prints a row for each file, and how many are exact."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    paths = sorted([*options.folder.glob("*.json.gz"), *options.folder.glob("*.pickle")])
    if not paths:
        parser.error(f"{options.folder}: no *.json.gz and no *.pickle in it")
    rows: list[Row] = []
    failed = 0
    if not options.json:
        print(f"{'file':52} {'events':>7} {'held':>5} {'segments':>8} {'peak':>14} {'replayed':>14}")
    for path in paths:
        try:
            row = measure(path)
        except (SnapshotError, ValueError, KeyError, OSError) as error:
            failed += 1
            print(f"{path.name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        rows.append(row)
        if not options.json:
            print(
                f"{row.name:52} {row.events:7} {row.held_segments:5} {row.recorded_segments:8} "
                f"{row.recorded_peak:14} {row.replayed_peak:14} "
                f"{'exact' if row.exact else 'DIFFERS'} ({row.seconds:.2f} s)"
            )
    exact = sum(row.exact for row in rows)
    if options.json:
        shown = [asdict(row) | {"exact": row.exact} for row in rows]
        print(json.dumps({"rows": shown, "exact": exact, "files": len(paths)}))
    else:
        print(f"{exact}/{len(paths)} exact")
    return 0 if exact == len(paths) else 1
