"""A recorded history on another device, under other settings: what `gpumem replay` tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from estimator import alloc_conf as conf
from estimator import recorded_by, snapshot, trace
from estimator.allocator import UNLIMITED, AllocatorConfig, Replay, ReplayError, replay, replay_stream_ordered
from estimator.frames import Frame
from estimator.held import HeldSegment
from estimator.rewind import HeldError
from estimator.snapshot import Snapshot

JSON = b"{"
ASYNC = "cudaMallocAsync"


class WhatIfError(Exception):
    """The history cannot be replayed; the text says why, in one line."""


@dataclass(frozen=True)
class Recording:
    """A history to be replayed; `rules` are those it was recorded by, None if it follows none that are known.

    `name` is the program or file it is from.
    """

    name: str
    snapshot: Snapshot
    torch_version: str | None
    rules: AllocatorConfig | None

    @property
    def initial(self) -> tuple[HeldSegment, ...]:
        """What was held when the history begins."""
        return self.snapshot.initial


def load(path: Path, torch_version: str | None = None, device: int | None = None) -> list[Recording]:
    """The histories in a trace of ours, in a folder of such, or in a snapshot of PyTorch.

    `torch_version` is that of the recording PyTorch, which snapshots do not tell; `device` is chosen from a
    snapshot of several.

    Raises:
        WhatIfError: there is none, or a file is not usable.
    """
    try:
        if path.is_dir():
            return _of_traces(trace.read_all(path), torch_version, str(path))
        with path.open("rb") as file:
            begin = file.read(1)
        if begin == JSON:
            return _of_traces([trace.read(path)], torch_version, str(path))
        return [recording(path.name, snapshot.read(path, device), torch_version)]
    except (trace.TraceError, snapshot.SnapshotError, HeldError) as error:
        raise WhatIfError(str(error)) from None
    except OSError as error:
        raise WhatIfError(f"{path}: cannot be read: {error.strerror}") from None


def _of_traces(traces: Sequence[trace.Trace], torch_version: str | None, source: str) -> list[Recording]:
    used = [one for one in traces if one.events is not None and len(one.events)]
    if not used:
        raise WhatIfError(f"{source}: no trace of a program that used the GPU")
    return [
        recording(one.program, Snapshot.of_trace(one), torch_version or one.torch_version) for one in used
    ]


def recording(name: str, found: Snapshot, torch_version: str | None) -> Recording:
    """A history, and the rules it was recorded by.

    Raises:
        WhatIfError: it contradicts itself.
    """
    configs = recorded_by.candidates(found.alloc_conf, torch_version)
    try:
        _, rules = recorded_by.find(found.events, configs, found.initial)
    except (ReplayError, HeldError) as error:
        raise WhatIfError(f"{name}: the history contradicts itself: {error}") from None
    return Recording(name, found, torch_version, rules)


@dataclass(frozen=True)
class Answer:
    """What a replay did, and where it ran out of memory: `oom_stack` has the innermost frame first.

    Threads of autograd have no Python stack: then it is the last one before (`oom_stack_is_before`).
    `as_recorded` tells whether the same rules repeat what was recorded, so that the answer can be trusted;
    `native` is False under `backend:cudaMallocAsync`, which leaves the work to the driver: the answer is
    then that of a simple model of the driver's pool, and not exact.
    """

    replayed: Replay
    oom_stack: tuple[Frame, ...]
    oom_stack_is_before: bool
    peak_stack: tuple[Frame, ...]
    as_recorded: bool
    native: bool


def ask(
    recorded: Recording,
    capacity: int = UNLIMITED,
    fraction: float | None = None,
    alloc_conf: str | None = None,
) -> Answer:
    """Replays on a device of `capacity` bytes, of which the allocator may take a `fraction`.

    `alloc_conf` replaces the settings that were in force when it was recorded.

    Raises:
        WhatIfError: the settings are none, or the history contradicts itself.
    """
    config, native = _rules(recorded, alloc_conf)
    if fraction is not None:
        config = replace(config, memory_fraction=fraction)
    try:
        events, initial = recorded.snapshot.events, recorded.initial
        if native:
            done = replay(events, capacity, config, initial)
        else:
            done = replay_stream_ordered(events, int(capacity * (fraction or 1.0)), initial)
    except ReplayError as error:
        raise WhatIfError(f"{recorded.name}: the history contradicts itself: {error}") from None
    oom: list[Frame] = []
    at = done.oom.event if done.oom else -1
    while at >= 0 and not oom:
        oom, at = recorded.snapshot.stack(at), at - 1
    is_before = done.oom is not None and bool(oom) and at + 1 != done.oom.event
    peak = recorded.snapshot.stack(done.peak_event) if done.peak_event is not None else []
    return Answer(done, tuple(oom), is_before, tuple(peak), recorded.rules is not None, native)


def _rules(recorded: Recording, asked: str | None) -> tuple[AllocatorConfig, bool]:
    """The rules to replay by, and whether they are those of the native allocator."""
    text, known = recorded.snapshot.alloc_conf, recorded.rules
    config = known or recorded_by.candidates(text, recorded.torch_version)[0]
    if asked is None:
        return config, ASYNC not in text
    try:
        found = conf.parse(asked, conf.version_of(recorded.torch_version))
    except conf.AllocConfError as error:
        raise WhatIfError(f"--alloc-conf {asked}: PyTorch would not start: {error}") from None
    return replace(found.config, oldest_segment_first=config.oldest_segment_first), found.is_exact
