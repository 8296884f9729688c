"""Our allocator doing the same."""

from __future__ import annotations

from estimator.allocator import Allocator, AllocatorConfig, OutOfMemoryError, capture
from estimator.allocator.streams import StreamUses
from estimator.held import State
from tests.estimator.fuzz.commands import TOTAL, Command, Session

OBSERVED = (
    "answer", "allocated", "allocated peak", "active", "active peak", "requested", "requested peak", "reserved",
    "reserved peak", "allocations", "active blocks", "segments", "inactive splits", "inactive split bytes", "retries",
    "ooms", "device allocs", "device frees", "syncs", "device bytes",
)  # fmt: skip


class Simulated:
    """One session of the simulator."""

    def __init__(self, session: Session, config: AllocatorConfig) -> None:
        self.allocator = Allocator(session.capacity, config, TOTAL)
        self.uses = StreamUses(self.allocator)

    def run(self, commands: list[Command]) -> list[list]:
        """The answer and the observables after each command."""
        return [[self.do(*command), *self.observe()] for command in commands]

    def do(self, what: str, *values):
        """Does one thing."""
        allocator, uses = self.allocator, self.uses
        if what == "malloc":
            handle, size, stream = values
            try:
                return uses.malloc(handle, size, stream).address
            except OutOfMemoryError:
                return "out of memory"
        if what == "free":
            if values[0] in allocator.live:
                uses.free(values[0])
        elif what == "record":
            if values[0] in allocator.live:
                uses.record_stream(*values)
        elif what == "hold":
            uses.hold(*values)
        elif what == "let_go":
            uses.let_go(*values)
        elif what == "empty_cache":
            uses.empty_cache()
        elif what == "fraction":
            allocator.set_memory_fraction(*values)
        elif what == "begin":
            allocator.begin_allocate_to_pool(*values)
        elif what == "end":
            allocator.end_allocate_to_pool(*values)
        elif what == "release_pool":
            allocator.release_pool(*values)
        elif what == "snapshot":
            return self.snapshot()
        return None

    def snapshot(self) -> list:
        """[address, whether it is small, blocks] of each segment."""
        return [
            [
                segment.address,
                segment.is_small,
                [[block.size, block.requested, _state(block.state)] for block in segment.blocks],
            ]
            for segment in capture(self.allocator)
        ]

    def observe(self) -> list[int]:
        """As `OBSERVED` names it."""
        a = self.allocator
        return [
            a.allocated, a.allocated_peak, a.active, a.active_peak, a.requested, a.requested_peak, a.reserved,
            a.reserved_peak, len(a.live), len(a.live) + len(a.awaiting_free), a.segments, a.inactive_splits,
            a.inactive_split, a.retries, a.ooms, a.device_allocs, a.device_frees, a.syncs, a.device.used,
        ]  # fmt: skip


def _state(state: State) -> str:
    return {"active_awaiting_free": "active_pending_free"}.get(state.value, state.value)
