"""Memory snapshots of PyTorch: what `torch.cuda.memory._dump_snapshot` writes and its visualiser opens.

A snapshot has the segments and blocks held when it was taken, and the last entries of the memory history.
Read from anywhere, so nothing in it is trusted: it is read by `estimator.pickles`, and each value is checked.
"""

from __future__ import annotations

import os
import pickle
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from estimator import pickles, private_pools
from estimator.allocator import Action
from estimator.frames import Frame
from estimator.held import HeldBlock, HeldSegment, State
from estimator.rewind import HeldError, advance, rewind
from estimator.trace import MAX_EVENTS, Events, Trace, printable

MAX_BYTES = 512 * 1024**2
MAX_FRAMES = 64  # of one stack
MAX_TEXT = 4096
STATES = frozenset(state.value for state in State)
PROTOCOL = 4  # the newest that the visualiser at pytorch.org/memory_viz reads
CONF_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


class SnapshotError(Exception):
    """A snapshot cannot be used; the text names the file and what is wrong with it."""


@dataclass(frozen=True)
class Snapshot:
    """The history of one device, and what its allocator held at the end of it.

    `events.stack` is an index into `stacks`, -1 for none; a stack is a list of indices into `frames`, the
    innermost first. `alloc_conf` is as in `PYTORCH_CUDA_ALLOC_CONF`.
    """

    events: Events
    frames: Sequence[Frame]
    stacks: Sequence[Sequence[int]]
    final: tuple[HeldSegment, ...]
    alloc_conf: str = ""
    device: int = 0

    @classmethod
    def of_trace(cls, trace: Trace) -> Snapshot:
        """What PyTorch would have dumped at the end of a traced run, which used the GPU.

        Raises:
            HeldError: the trace contradicts itself.
        """
        events = trace.events
        if events is None:
            raise ValueError("the process did not use the GPU")
        private = {one.address: one.pool for one in trace.private_segments}
        final = (replace(segment, pool=private.get(segment.address, 0)) for segment in advance((), events))
        return cls(events, trace.frames, trace.stacks, tuple(final), trace.alloc_conf)

    @cached_property
    def initial(self) -> tuple[HeldSegment, ...]:
        """What was held when the history begins.

        Raises:
            HeldError: the snapshot contradicts itself.
        """
        return rewind(self.final, self.events)

    def stack(self, event: int) -> list[Frame]:
        """The Python stack of an event, the innermost frame first."""
        number = self.events.stack[event] if event >= 0 else -1
        return [self.frames[frame] for frame in self.stacks[number]] if number >= 0 else []


# --- reading ---


def read(path: Path, device: int | None = None) -> Snapshot:
    """Reads the part of one device; without `device`, of the only one that was used.

    Raises:
        SnapshotError: the file cannot be read, is no snapshot, or contradicts itself.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SnapshotError(f"{path}: not a regular file")
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SnapshotError(f"{path}: cannot be read: {error.strerror}") from None
    return parse(data, str(path), device)


def parse(data: bytes, source: str, device: int | None = None) -> Snapshot:
    """Checks the bytes of a snapshot; `source` is named in errors.

    Raises:
        SnapshotError: as `read`.
    """
    if len(data) > MAX_BYTES:
        raise SnapshotError(
            f"{source}: a snapshot of more than {MAX_BYTES // 1024**2} MiB: record fewer entries"
        )
    try:
        found = _snapshot(pickles.loads(data), device)
        _ = found.initial
    except (pickles.PickleRefused, _Wrong, HeldError) as error:
        raise SnapshotError(f"{source}: not a usable memory snapshot: {error}") from None
    return found


class _Wrong(ValueError):
    """Something in the snapshot is not what it should be."""


def _snapshot(value: object, device: int | None) -> Snapshot:
    whole = _dict(value, "the snapshot")
    traces = _list(whole.get("device_traces"), "device_traces")
    segments = [_dict(one, "a segment") for one in _list(whole.get("segments"), "segments")]
    device = _device(traces, segments, device)
    entries = _list(traces[device], "a device trace") if device < len(traces) else []
    if len(entries) > MAX_EVENTS:
        raise _Wrong(f"it has more than {MAX_EVENTS} entries")
    tables = _Stacks()
    own = [one for one in segments if one.get("device", 0) == device]
    numbers: dict[tuple[int, int], int] = {(0, 0): 0}  # of the pools
    final = tuple(_segment(one, numbers) for one in own)
    settings = whole.get("allocator_settings") or {}
    names = [_dict(settings, "allocator_settings").get(name) for name in CONF_NAMES]
    conf = next((name for name in names if isinstance(name, str) and name), "")
    events = _events(entries, tables)
    private = [(one.address, one.size, one.pool) for one in final if one.pool]
    events = replace(events, pool=private_pools.of_allocations(events.action, events.address, private))
    return Snapshot(events, tables.frames, tables.stacks, final, printable(conf[:MAX_TEXT]), device)


def _device(traces: list[Any], segments: list[dict[Any, Any]], wanted: int | None) -> int:
    used = {index for index, entries in enumerate(traces) if entries}
    if not used:
        used = {_number(one.get("device", 0), "a device") for one in segments}
    if wanted is None and len(used) > 1:
        listed = ", ".join(map(str, sorted(used)))
        raise _Wrong(f"it has several devices, one has to be chosen: {listed}")
    if wanted is not None and wanted not in used:
        raise _Wrong(f"it has nothing of device {wanted}")
    if not used:
        raise _Wrong("it holds nothing: was the history recorded, and the GPU used?")
    return wanted if wanted is not None else used.pop()


def _events(entries: list[Any], tables: _Stacks) -> Events:
    codes = {action.name.lower(): int(action) for action in Action}
    action: list[int] = []
    address: list[int] = []
    size: list[int] = []
    stream: list[int] = []
    stack: list[int] = []
    for entry in entries:
        if type(entry) is not dict:
            raise _Wrong("an entry of the history is not a dict")
        name = entry.get("action")
        code = codes.get(name, -1) if isinstance(name, str) else -1
        if code < 0:
            continue  # snapshots, annotations, events of the user
        numbers = (entry.get("addr", 0), entry.get("size", -1), entry.get("stream", 0))
        for number in numbers:
            if type(number) is not int or not 0 <= number < 1 << 64:
                raise _Wrong("an address, size or stream of the history is not a number, or too large")
        action.append(code)
        address.append(numbers[0])
        size.append(numbers[1])
        stream.append(numbers[2])
        stack.append(tables.number(entry.get("frames")))
    return Events(action, address, size, stream, stack)


def _segment(value: dict[Any, Any], numbers: dict[tuple[int, int], int]) -> HeldSegment:
    address = _number(value.get("address"), "the address of a segment")
    at = address
    blocks = []
    for one in _list(value.get("blocks"), "the blocks of a segment"):
        block = _dict(one, "a block")
        size = _number(block.get("size"), "the size of a block")
        state = block.get("state")
        if state == "active_pending_free":  # its name in some versions
            state = State.AWAITING_FREE
        if not isinstance(state, str) or state not in STATES:
            raise _Wrong("the state of a block is not known")
        requested = _number(block.get("requested_size", size), "the size of a block")
        blocks.append(HeldBlock(at, size, 0 if state == State.FREE else requested, State(state)))
        at += size
    if at - address != value.get("total_size"):
        raise _Wrong("the blocks of a segment do not fill it")
    return HeldSegment(
        address,
        at - address,
        _number(value.get("stream", 0), "a stream"),
        value.get("segment_type") == "small",
        value.get("is_expandable") is True,
        tuple(blocks),
        numbers.setdefault(_pool(value.get("segment_pool_id")), len(numbers)),
    )


def _pool(value: object) -> tuple[int, int]:
    """The id of a pool, which has two parts; (0, 0) is the default one, and what old versions do not tell."""
    if not isinstance(value, tuple) or len(value) != 2:
        return (0, 0)
    return _number(value[0], "the id of a pool"), _number(value[1], "the id of a pool")


def _dict(value: object, what: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _Wrong(f"{what} is missing or not a dict")
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise _Wrong(f"{what} is missing or not a list")
    return value


def _number(value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise _Wrong(f"{what} is not a number, or too large")
    return value


class _Stacks:
    """Every frame and every stack once. PyTorch shares the objects, and so does the pickle."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.stacks: list[list[int]] = []
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._by_identity: dict[int, int] = {}

    def number(self, frames: object) -> int:
        """The number of a stack, -1 for none; `frames` must stay alive while this is used."""
        if not frames:
            return -1
        known = self._by_identity.get(id(frames))
        if known is None:
            key = tuple(self._frame(frame) for frame in _list(frames, "a stack")[:MAX_FRAMES])
            known = self._by_identity[id(frames)] = self._stacks.setdefault(key, len(self._stacks))
            if known == len(self.stacks):
                self.stacks.append(list(key))
        return known

    def _frame(self, value: object) -> int:
        frame = _dict(value, "a frame")
        file, name = frame.get("filename"), frame.get("name")
        if not isinstance(file, str) or not isinstance(name, str):
            raise _Wrong("a frame has no file or function")
        line = _number(frame.get("line"), "the line of a frame")
        key = (printable(file[:MAX_TEXT]), line, printable(name[:MAX_TEXT]))
        known = self._frames.setdefault(key, len(self._frames))
        if known == len(self.frames):
            self.frames.append(key)
        return known


# --- writing ---


def dumps(snapshot: Snapshot) -> bytes:
    """The snapshot as PyTorch writes it, without times, which a trace does not have."""
    frames = [{"filename": file, "line": line, "name": name} for file, line, name in snapshot.frames]
    stacks = [[frames[frame] for frame in stack] for stack in snapshot.stacks]
    none: list[dict[str, object]] = []
    allocated_by: dict[int, list[dict[str, object]]] = {}  # stacks by address
    entries = []
    for action, address, size, stream, stack in _rows(snapshot.events):
        where = stacks[stack] if stack >= 0 else none
        if action == Action.ALLOC:
            allocated_by[address] = where
        entry = {"action": _ACTIONS[action], "addr": address, "size": size, "stream": stream, "frames": where}
        if action == Action.OOM:
            entry["device_free"] = entry.pop("addr")
        entries.append(entry)
    segments = []
    for segment in snapshot.final:
        blocks = [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested or block.size,
                "state": block.state.value,
                "frames": none if block.state is State.FREE else allocated_by.get(block.address, none),
            }
            for block in segment.blocks
        ]
        used = [block for block in segment.blocks if block.state is not State.FREE]
        allocated = sum(block.size for block in used if block.state is State.ALLOCATED)
        segments.append(
            {
                "device": snapshot.device,
                "address": segment.address,
                "total_size": segment.size,
                "allocated_size": allocated,
                "active_size": sum(block.size for block in used),
                "requested_size": sum(block.requested for block in used),
                "stream": segment.stream,
                "segment_type": "small" if segment.is_small else "large",
                "segment_pool_id": (segment.pool, 0),
                "is_expandable": segment.is_expandable,
                "frames": none,
                "blocks": blocks,
            }
        )
    whole = {
        "segments": segments,
        "device_traces": [[] for _ in range(snapshot.device)] + [entries],
        "allocator_settings": {CONF_NAMES[0]: snapshot.alloc_conf},
    }
    return pickle.dumps(whole, protocol=PROTOCOL)


_ACTIONS = {int(action): action.name.lower() for action in Action}


def _rows(events: Events) -> Any:
    return (
        row
        for row in zip(events.action, events.address, events.size, events.stream, events.stack, strict=True)
        if row[0] in _ACTIONS
    )
