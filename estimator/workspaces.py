"""How much of the peak hangs on workspaces that were assumed: replays with less and with more of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from estimator.allocator import AllocatorConfig, Replay, ReplayError, replay
from estimator.allocator.history import ALLOC, FREE_COMPLETED, FREE_REQUESTED

if TYPE_CHECKING:
    from estimator.trace import Events, Touched, Trace

CONVOLUTION = "cudnn convolution workspace"  # as the fake device names the answers
ATTENTION = "cudnn attention workspace"
SOLVER = "cusolver workspace"
ASSUMED = (CONVOLUTION, ATTENTION, SOLVER)
ROUNDING = 512  # of allocations
OTHERWISE = (0, 2)  # times the workspaces of the rule


def asked_for(trace: Trace, answer: str) -> dict[int, int]:
    """The allocations that were workspaces of this kind: their events, and the bytes that were asked for.

    For attention these are the end of an allocation: what cuDNN's frontend needs lies before.
    """
    events = trace.events
    if events is None:
        return {}
    ends = [*(mark.event for mark in trace.marks[1:]), len(events)]
    wanted: dict[int, dict[int, set[int]]] = {}  # mark -> end -> beginnings
    for touched in _touched(trace, answer):
        places = wanted.setdefault(touched.mark, {})
        places.setdefault(_rounded(touched.address + touched.bytes), set()).add(touched.address)
    found: dict[int, int] = {}
    for mark, places in wanted.items():
        for event in range(trace.marks[mark].event, ends[mark]):
            if events.action[event] != ALLOC:
                continue
            address, end = events.address[event], events.address[event] + events.size[event]
            for begin in places.get(_rounded(end), ()):
                if begin == address or (answer == ATTENTION and address < begin < end):
                    found[event] = max(found.get(event, 0), end - begin)
    return found


def scaled(events: Events, workspaces: dict[int, int], factor: int) -> Events:
    """The history with so many times as much of each of these workspaces; with 0, without them."""
    action, address, size = list(events.action), list(events.address), list(events.size)
    ignored = -1  # replays leave out what is no action
    current: dict[int, int] = {}  # address -> bytes now, of allocations in use that hold a workspace
    for index, (kind, place, count) in enumerate(zip(action, address, size, strict=True)):
        if kind == ALLOC and index in workspaces:
            current[place] = count + workspaces[index] * (factor - 1)
        elif kind not in (FREE_REQUESTED, FREE_COMPLETED) or place not in current:
            continue
        size[index] = current[place]
        if not current[place]:
            action[index] = ignored
        if kind == FREE_COMPLETED:
            del current[place]
    return replace(events, action=action, size=size)


def hanging(trace: Trace, replayed: Replay, config: AllocatorConfig | None, answer: str) -> int:
    """Bytes of the reserved peak that may be more or less with other workspaces of this kind than assumed.

    Fragmentation follows from every size, so this is found by replays without workspaces and with twice as
    much. Where there is nothing to replay, it is the largest workspace, or where the rule asked for none, the
    most that a convolution could have asked for.
    """
    workspaces = asked_for(trace, answer)
    if not workspaces or trace.events is None or config is None:
        return _largest(trace, answer)
    peaks = []
    for factor in OTHERWISE:
        try:
            peaks.append(replay(scaled(trace.events, workspaces, factor), config=config).reserved_peak)
        except ReplayError:
            return _largest(trace, answer)
    return max(abs(peak - replayed.reserved_peak) for peak in peaks)


def _touched(trace: Trace, answer: str) -> list[Touched]:
    flag = {CONVOLUTION: "cudnn", ATTENTION: "attention", SOLVER: "cusolver"}[answer]
    return [touched for touched in trace.touched if getattr(touched, flag)]


def _rounded(count: int) -> int:
    return -(-count // ROUNDING) * ROUNDING


def _largest(trace: Trace, answer: str) -> int:
    if answer == CONVOLUTION:
        return trace.largest_convolution
    return max((touched.bytes for touched in _touched(trace, answer)), default=0)
