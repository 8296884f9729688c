"""GPU memory over the course of a traced run, split by owner: the numbers behind a picture.

There are no clock times in a trace: what the fake device does in a moment takes hours elsewhere. The course
is that of PyTorch's memory history, counted in events (allocations, frees, segments).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from estimator.allocator import DEFAULT_CONFIG, UNLIMITED, Action
from estimator.frames import users
from estimator.owners import MODULE_CALLS, MODULE_FILE, Owner
from estimator.trace import Events, Phase, Trace

ACCURACY = 600  # samples; more than a picture is wide
TOP = 5  # stacks
STACK_SHOWN = 3
NO_STACK = "no Python stack (a thread of autograd, or a library)"

OwnersOf = Callable[[Trace, Events], Sequence[str]]
"""The name of the owner of what each event allocates; of events that allocate nothing, any text."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the program, the innermost frame first, and what it holds at the peak (bytes, blocks)."""

    frames: tuple[str, ...]
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Interval:
    """Events from `begin` up to `end` in which the program was in one phase of a step (counted from 0)."""

    begin: int
    end: int
    phase: str
    step: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Samples of the course of a run; sizes in bytes.

    Each stretch of events is shown by the moment in it when the most was allocated, so the peak is among the
    samples. `bytes[owner][sample]` is allocated for that owner, `reserved[sample]` from the device.
    `peak` is the sample when the most was allocated, `top` the places that held the most then.
    """

    events: int
    at: tuple[int, ...]
    owners: tuple[str, ...]
    bytes: tuple[tuple[int, ...], ...]
    reserved: tuple[int, ...]
    peak: int
    top: tuple[Place, ...]
    intervals: tuple[Interval, ...]

    @property
    def allocated_peak(self) -> int:
        """Bytes allocated at the peak."""
        return sum(row[self.peak] for row in self.bytes)

    @property
    def reserved_peak(self) -> int:
        """The most bytes that were reserved in a sample."""
        return max(self.reserved)


def timeline(trace: Trace, peak_event: int | None = None, owners_of: OwnersOf | None = None) -> Timeline:
    """The course of a run that used the GPU; `owners_of` says whose each block is, or `block_owners` does.

    `peak_event`: after which the most was allocated, as a replay knows better (None: as seen here).

    Reserved is what PyTorch took in the run, on a device without limit. Blocks count with their size after
    rounding; the unsplit rest of a block is not known here and counts as reserved only.
    """
    events = trace.events
    if events is None or not len(events):
        raise ValueError("the process did not use the GPU")
    owner_of = (owners_of or block_owners)(trace, events)
    names = _ordered({owner_of[at] for at, action in enumerate(events.action) if action == Action.ALLOC})
    samples = _Samples(events, owner_of, names, peak_event)
    if peak_event is not None:
        peak = samples.at.index(peak_event)
    else:
        peak = max(range(len(samples.at)), key=lambda sample: sum(samples.rows[sample]))
    return Timeline(
        events=len(events),
        at=tuple(samples.at),
        owners=names,
        bytes=tuple(tuple(row[index] for row in samples.rows) for index in range(len(names))),
        reserved=tuple(samples.reserved),
        peak=peak,
        top=_top(trace, events, samples.at[peak]),
        intervals=_intervals(trace, len(events)),
    )


def _ordered(names: set[str]) -> tuple[str, ...]:
    known = [owner.value for owner in Owner]
    return tuple(sorted(names, key=lambda name: (known.index(name) if name in known else len(known), name)))


class _Samples:
    """Walks through the history once; keeps the fullest moment of each stretch of events."""

    def __init__(
        self, events: Events, owner_of: Sequence[str], names: Sequence[str], peak_event: int | None
    ) -> None:
        self.at: list[int] = []
        self.rows: list[tuple[int, ...]] = []
        self.reserved: list[int] = []
        index_of = {name: index for index, name in enumerate(names)}
        round_size = DEFAULT_CONFIG.round_size
        row = [0] * len(names)
        live: dict[int, tuple[int, int]] = {}  # (bytes, index of the owner) by address
        allocated = reserved = 0
        stretch = max(1, -(-len(events) // ACCURACY))
        fullest: tuple[int, int, tuple[int, ...]] | None = None  # (allocated, event, row)
        most_reserved = 0
        rows = zip(events.action, events.address, events.size, strict=True)
        for event, (action, address, size) in enumerate(rows):
            if action == _ALLOC:
                taken = round_size(size)
                index = index_of[owner_of[event]]
                live[address] = (taken, index)
                row[index] += taken
                allocated += taken
                if fullest is None or allocated > fullest[0] or event == peak_event:
                    fullest = (allocated if event != peak_event else UNLIMITED, event, tuple(row))
            elif action == _FREE_REQUESTED:
                taken, index = live.pop(address, (0, 0))
                row[index] -= taken
                allocated -= taken
            elif action in _GROWING:
                reserved += size
                most_reserved = max(most_reserved, reserved)
            elif action in _SHRINKING:
                reserved -= size
            if (event + 1) % stretch == 0 or event + 1 == len(events):
                self._keep(fullest or (allocated, event, tuple(row)), max(most_reserved, reserved))
                fullest, most_reserved = None, reserved

    def _keep(self, moment: tuple[int, int, tuple[int, ...]], reserved: int) -> None:
        _, event, row = moment
        self.at.append(event)
        self.rows.append(row)
        self.reserved.append(reserved)


_ALLOC, _FREE_REQUESTED = int(Action.ALLOC), int(Action.FREE_REQUESTED)
_GROWING = (int(Action.SEGMENT_ALLOC), int(Action.SEGMENT_MAP))
_SHRINKING = (int(Action.SEGMENT_FREE), int(Action.SEGMENT_UNMAP))


def _intervals(trace: Trace, events: int) -> tuple[Interval, ...]:
    """The marks as intervals; neighbours in one phase of one step are one."""
    found: list[Interval] = []
    ends = [mark.event for mark in trace.marks[1:]] + [events]
    for mark, end in zip(trace.marks, ends, strict=True):
        if end <= mark.event:
            continue
        last = found[-1] if found else None
        if last and (last.phase, last.step) == (mark.phase.value, mark.step):
            found[-1] = Interval(last.begin, end, last.phase, last.step)
        else:
            found.append(Interval(mark.event, end, mark.phase.value, mark.step))
    return tuple(found)


def _top(trace: Trace, events: Events, moment: int) -> tuple[Place, ...]:
    """The places of the program that hold the most after event `moment`."""
    live: dict[int, int] = {}
    for event in range(moment + 1):
        if events.action[event] == _ALLOC:
            live[events.address[event]] = event
        elif events.action[event] == _FREE_REQUESTED:
            live.pop(events.address[event], None)
    sizes: Counter[int] = Counter()
    blocks: Counter[int] = Counter()
    for event in live.values():
        stack = events.stack[event]
        sizes[stack] += DEFAULT_CONFIG.round_size(events.size[event])
        blocks[stack] += 1
    by_place: Counter[tuple[str, ...]] = Counter()
    count: Counter[tuple[str, ...]] = Counter()
    for stack, size in sizes.items():
        place = _place(trace, stack)
        by_place[place] += size
        count[place] += blocks[stack]
    return tuple(Place(place, size, count[place]) for place, size in by_place.most_common(TOP))


def _place(trace: Trace, stack: int) -> tuple[str, ...]:
    """The frames of the user's code, innermost first; of installed packages where there are no others."""
    if stack < 0:
        return (NO_STACK,)
    shown = users([trace.frames[frame] for frame in trace.stacks[stack]])[:STACK_SHOWN]
    return tuple(f"{file.rsplit('/', 1)[-1]}:{line} {name}" for file, line, name in shown)


# --- whose each block is ---


def block_owners(trace: Trace, events: Events) -> list[str]:
    """The owner of each allocation, by the rules of `estimator.owners`, over the whole life of its block."""
    claims: dict[int, Owner] = {}  # by event
    rank = {owner: order for order, owner in enumerate(Owner)}

    def claim(event: int, owner: Owner) -> None:
        if event not in claims or rank[owner] < rank[claims[event]]:
            claims[event] = owner

    in_module = [_calls_module(trace, stack) for stack in trace.stacks]
    marks = [mark.event for mark in trace.marks]
    owned: dict[int, list[tuple[Owner, Sequence[int]]]] = {}
    for one in trace.owned:
        owned.setdefault(one.mark, []).append((Owner(one.owner), one.addresses))
    touched: dict[int, dict[int, list[tuple[Owner, int]]]] = {}
    for place in trace.touched:
        touched.setdefault(place.mark, {}).setdefault(place.address, []).append(
            (Owner(place.owner), place.bytes)
        )
    live: dict[int, int] = {}  # the event that allocated it, by address
    mark = -1
    here: dict[int, list[tuple[Owner, int]]] = {}
    for event in range(len(events) + 1):
        while mark + 1 < len(marks) and marks[mark + 1] <= event:
            mark += 1
            for owner, addresses in owned.get(mark, ()):
                for address in addresses:
                    if address in live:
                        claim(live[address], owner)
            here = touched.get(mark, {})
            for address, places in here.items():
                for owner, _ in places:
                    if owner is Owner.WORKSPACES and address in live:
                        claim(live[address], owner)
        if event == len(events):
            break
        action, address = events.action[event], events.address[event]
        if action == _ALLOC:
            live[address] = event
            module = events.stack[event] >= 0 and in_module[events.stack[event]]
            for owner, size in here.get(address, ()):
                if size == events.size[event] and (owner is Owner.WORKSPACES or not module):
                    claim(event, owner)
        elif action == _FREE_REQUESTED:
            live.pop(address, None)

    def owner_at(event: int) -> str:
        claimed = claims.get(event)
        if claimed is None:
            stack = events.stack[event]
            claimed = _by_phase(
                trace.marks[bisect_right(marks, event) - 1].phase, stack >= 0 and in_module[stack]
            )
        return claimed.value

    return [owner_at(event) if action == _ALLOC else "" for event, action in enumerate(events.action)]


def _calls_module(trace: Trace, stack: Sequence[int]) -> bool:
    frames = (trace.frames[frame] for frame in stack)
    return any(name in MODULE_CALLS and file.endswith(MODULE_FILE) for file, _, name in frames)


def _by_phase(phase: Phase, in_module: bool) -> Owner:
    if phase in (Phase.BACKWARD, Phase.OPTIMIZER):
        return Owner.TEMPORARIES
    return Owner.ACTIVATIONS if phase is Phase.FORWARD or in_module else Owner.OTHER
