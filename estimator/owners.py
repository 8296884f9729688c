"""Whose the reserved bytes are.

Asked at the moment when the most is allocated, not when the most is reserved: that is often reached by one
more small segment when activations are long gone, and nearly everything would be slack.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum

from estimator.allocator import Action, LiveBlock, Replay
from estimator.trace import Events, Owned, Phase, Touched, Trace

MODULE_FILE = "torch/nn/modules/module.py"
MODULE_CALLS = ("_call_impl", "_wrapped_call_impl")


class Owner(StrEnum):
    """What a block is for. Where several would fit, the earlier one is taken."""

    PARAMETERS = "parameters"
    BUFFERS = "buffers"  # `register_buffer`: running statistics, masks
    OPTIMIZER_STATE = "optimizer_state"
    GRADIENTS = "gradients"
    WORKSPACES = "workspaces"  # scratch space of cuBLAS and cuDNN
    INPUTS = "inputs"  # batches copied from the host
    ACTIVATIONS = "activations"  # allocated in a forward pass
    TEMPORARIES = "temporaries"  # allocated in a backward pass or optimizer step
    OTHER = "other"
    SLACK = "slack"  # reserved, but in no block: cached


@dataclass(frozen=True, slots=True)
class Split:
    """The bytes of a reserved peak; `by_owner` sums to it exactly, `by_module` to the activations.

    A module is named by its path within the model that was called, such as `model.layers.3.mlp`; "" stands
    for that model itself and for what no module's call allocated. The largest comes first.
    """

    by_owner: dict[Owner, int]
    by_module: dict[str, int]


def split(trace: Trace, replayed: Replay) -> Split:
    """Splits `replayed.reserved_peak` (bytes) among all owners, and activations among modules."""
    by_owner = dict.fromkeys(Owner, 0)
    by_module: dict[str, int] = {}
    for block, owner in of_live(trace, replayed):
        by_owner[owner] += block.size
        if owner is Owner.ACTIVATIONS:
            name = _module_at(trace, block.event)
            by_module[name] = by_module.get(name, 0) + block.size
    by_owner[Owner.SLACK] = replayed.reserved_peak - sum(by_owner.values())
    return Split(by_owner, dict(sorted(by_module.items(), key=lambda item: (-item[1], item[0]))))


def of_live(trace: Trace, replayed: Replay) -> list[tuple[LiveBlock, Owner]]:
    """The blocks in use when the most was allocated, and whose each is."""
    if trace.events is None or replayed.busiest_event is None:
        return []
    blocks = _Blocks(trace, trace.events, replayed.live, replayed.busiest_event)
    return list(zip(replayed.live, blocks.owners(), strict=True))


def _module_at(trace: Trace, event: int) -> str:
    """The innermost module whose call was going on at `event`."""
    if trace.calls is None:
        return ""
    number = bisect_right(trace.calls.event, event) - 1
    module = trace.calls.module[number] if number >= 0 else -1
    return trace.modules[module] if module >= 0 else ""


@dataclass(frozen=True, slots=True)
class _Span:
    """When and where a block is in use: events [`begin`, `end`), addresses [`address`, `address + bytes`)."""

    begin: int
    end: int
    address: int
    bytes: int

    def holds(self, address: int) -> bool:
        return self.address <= address < self.address + max(self.bytes, 1)


class _Blocks:
    """The blocks of one moment, found by address; an address is in at most one, as they do not overlap."""

    def __init__(self, trace: Trace, events: Events, live: tuple[LiveBlock, ...], moment: int) -> None:
        self._trace, self._events = trace, events
        self._spans = _spans(events, live, moment)
        self._addresses = [span.address for span in self._spans]
        self._mark_events = [mark.event for mark in trace.marks]
        self._within: dict[int, set[tuple[int, int]]] = {}

    def owners(self) -> list[Owner]:
        """The owner of each block, in the order of `Replay.live`."""
        claims: list[set[Owner]] = [set() for _ in self._spans]
        for owned in self._trace.owned:
            self._claim_owned(claims, owned)
        for touched in self._trace.touched:
            self._claim_touched(claims, touched)
        return [
            min(claim, key=_ORDER.__getitem__) if claim else self._by_phase(span)
            for claim, span in zip(claims, self._spans, strict=True)
        ]

    def _at(self, address: int) -> int | None:
        index = bisect_right(self._addresses, address) - 1
        return index if index >= 0 and self._spans[index].holds(address) else None

    def _claim_owned(self, claims: list[set[Owner]], owned: Owned) -> None:
        """An owner at one moment is the owner for the block's whole life."""
        moment = self._trace.marks[owned.mark].event
        for address in owned.addresses:
            index = self._at(address)
            if index is not None and self._spans[index].begin < moment <= self._spans[index].end:
                claims[index].add(Owner(owned.owner))

    def _claim_touched(self, claims: list[set[Owner]], touched: Touched) -> None:
        """Of blocks that held the place one after the other, the one of the touched size is meant."""
        index = self._at(touched.address)
        if index is None:
            return
        span = self._spans[index]
        begin, end = self._interval(touched.mark)
        if not (span.begin < end and begin <= span.end):
            return
        if span.bytes != touched.bytes and (touched.address, touched.bytes) in self._allocated_within(
            begin, end
        ):
            return
        if touched.owner == "workspaces" or (begin <= span.begin and not self._in_module_call(span)):
            claims[index].add(Owner(touched.owner))

    def _by_phase(self, span: _Span) -> Owner:
        phase = self._trace.marks[self._mark_of(span.begin)].phase
        if phase in (Phase.BACKWARD, Phase.OPTIMIZER):
            return Owner.TEMPORARIES
        if phase is Phase.FORWARD or self._in_module_call(span):
            return Owner.ACTIVATIONS
        return Owner.OTHER

    def _mark_of(self, event: int) -> int:
        return bisect_right(self._mark_events, event) - 1

    def _interval(self, mark: int) -> tuple[int, int]:
        following = mark + 1
        end = self._mark_events[following] if following < len(self._mark_events) else len(self._events)
        return self._mark_events[mark], end

    def _allocated_within(self, begin: int, end: int) -> set[tuple[int, int]]:
        """(address, bytes asked for) of the allocations from event `begin` up to `end`."""
        if begin not in self._within:
            events = self._events
            self._within[begin] = {
                (events.address[at], events.size[at])
                for at in range(begin, end)
                if events.action[at] == Action.ALLOC
            }
        return self._within[begin]

    def _in_module_call(self, span: _Span) -> bool:
        """Whether the block was allocated within a call of a `torch.nn.Module`."""
        stack = self._events.stack[span.begin]
        if stack < 0:
            return False
        frames = (self._trace.frames[frame] for frame in self._trace.stacks[stack])
        return any(name in MODULE_CALLS and file.endswith(MODULE_FILE) for file, _, name in frames)


_ORDER = {owner: order for order, owner in enumerate(Owner)}


def _spans(events: Events, live: tuple[LiveBlock, ...], moment: int) -> list[_Span]:
    freed: dict[int, int] = {}
    waiting = {block.address for block in live}
    for event in range(moment + 1, len(events)):
        if not waiting:
            break
        if events.action[event] == Action.FREE_REQUESTED and events.address[event] in waiting:
            waiting.remove(events.address[event])
            freed[events.address[event]] = event
    return [
        _Span(block.event, freed.get(block.address, len(events)), block.address, block.requested)
        for block in live
    ]
