"""What keeps an estimate from being exact, and how much of the peak hangs on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from estimator import workspaces
from estimator.allocator import AllocatorConfig, Replay
from estimator.owners import Owner, of_live
from estimator.trace import SizedByData, Trace
from settings import GIB, MIB

# how many blocks of a kernel fit a multiprocessor: sizes the scratch space of sorts and scans (kilobytes)
HARMLESS_ANSWERS = ("occupancy",)
NAMES_SHOWN = 5
SHAPED_AS_PARAMETERS = (Owner.GRADIENTS, Owner.OPTIMIZER_STATE)
MATERIAL = 0.01  # of the peak: an assumption on which less hangs is not worth a doubt


@dataclass(frozen=True, slots=True)
class Bound:
    """One reason; `bytes` of the peak hang on it, None: not known.

    `kind`: an operator whose result has the size of data, a call that the fake device does not know, an
    answer of a library that was made up, or how the run went.
    """

    what: str
    kind: Literal["op", "call", "library", "run"]
    bytes: int | None = None


def of_trace(
    trace: Trace,
    replayed: Replay,
    config: AllocatorConfig | None = None,
    assumed: Mapping[str, int] | None = None,
) -> list[Bound]:
    """The calls, libraries and operators that make the estimate of one process a bounded one.

    `config`: the allocator's rules, None if they are not known; `assumed`: bytes that hang on an answer.
    """
    return [
        *(Bound(name, "call") for name in trace.unknown_calls),
        *_libraries(trace, replayed, config, assumed or {}),
        *_operators(trace, replayed),
    ]


def told(bounds: Sequence[Bound]) -> list[str]:
    """The same as notes, one for each kind."""
    by_kind: dict[str, list[Bound]] = {}
    for bound in bounds:
        by_kind.setdefault(bound.kind, []).append(bound)
    notes = []
    if calls := by_kind.get("call"):
        notes.append(f"calls unknown to the fake CUDA device did nothing: {_listed([b.what for b in calls])}")
    if answers := by_kind.get("library"):
        names = [b.what + (f", {_size(b.bytes)} of the peak" if b.bytes else "") for b in answers]
        notes.append(f"answers of the fake CUDA device were assumed: {_listed(names)}")
    if operators := by_kind.get("op"):
        names = [b.what + (f", {_size(b.bytes)} of the peak" if b.bytes else "") for b in operators]
        notes.append(f"sizes that follow data are taken at their bound: {_listed(names)}")
    return notes


def _libraries(
    trace: Trace, replayed: Replay, config: AllocatorConfig | None, assumed: Mapping[str, int]
) -> list[Bound]:
    """Answers of libraries that were made up, as far as they matter."""
    found = []
    for name in trace.invented:
        if name in workspaces.ASSUMED:
            count = workspaces.hanging(trace, replayed, config, name)
            if count >= MATERIAL * replayed.reserved_peak:
                found.append(Bound(name, "library", count))
        elif name not in HARMLESS_ANSWERS:
            found.append(Bound(name, "library", assumed.get(name)))
    return found


def _operators(trace: Trace, replayed: Replay) -> list[Bound]:
    """Each operator at each place, the one on which the most hangs first."""
    at_peak = _by_function(trace, replayed) if trace.sizes else {}
    found: dict[str, int] = {}
    for size in trace.sizes:
        name = f"{size.what} ({_place(size)})"
        hanging = max((_hanging(at_peak, frame) for frame in size.frames), default=0)
        found[name] = max(found.get(name, 0), hanging)
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return [Bound(name, "op", count or None) for name, count in ordered]


def _place(size: SizedByData) -> str:
    if not size.frames:
        return "within torch"
    file, line, _ = size.frames[0]
    return f"{'/'.join(file.split('/')[-2:])}:{line}"


Allocated = Mapping[tuple[str, str], list[tuple[int, int, Owner]]]
"""(file, function) -> line, bytes and owner of the blocks at the peak that it allocated, or had allocated."""


def _by_function(trace: Trace, replayed: Replay) -> Allocated:
    events = trace.events
    lines: dict[tuple[str, str], list[tuple[int, int, Owner]]] = {}
    for block, owner in of_live(trace, replayed):
        stack = events.stack[block.event] if events is not None else -1
        if stack >= 0:
            seen: dict[tuple[str, str], int] = {}
            for frame in trace.stacks[stack]:
                file, line, function = trace.frames[frame]
                seen.setdefault((file, function), line)
            for key, line in seen.items():
                lines.setdefault(key, []).append((line, block.size, owner))
    return lines


def _hanging(at_peak: Allocated, frame: tuple[str, int, str]) -> int:
    """Bytes at the peak that the same function allocated from that line on, or had allocated for it.

    What has the shapes of the parameters counts only if parameters are among it.
    """
    file, first, function = frame
    since = [(owner, count) for line, count, owner in at_peak.get((file, function), ()) if line >= first]
    makes_parameters = any(owner is Owner.PARAMETERS for owner, _ in since)
    return sum(count for owner, count in since if makes_parameters or owner not in SHAPED_AS_PARAMETERS)


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.1f} MiB"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    return f"{shown} and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else shown
