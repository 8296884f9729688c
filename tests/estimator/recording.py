"""Programs as they would be recorded: allocations placed by an allocator without limit, marks, owners."""

from __future__ import annotations

import json

from estimator import trace
from estimator.allocator import Action, Allocator, History

ACTIONS = [action.name.lower() for action in Action]
MODULE_CALL = ("/env/torch/nn/modules/module.py", 1784, "_call_impl")
USER_CODE = ("train.py", 7, "<module>")


class Recording:
    """A program on a recording device; `alloc` returns the address."""

    def __init__(self, phase: str = "setup") -> None:
        self.allocator = Allocator()
        self._next_handle = 0
        self.requested: dict[int, int] = {}
        self._streams: dict[int, int] = {}  # by address of a segment
        self._handles: dict[int, int] = {}
        self.columns: dict[str, list[int]] = {
            name: [] for name in ("action", "address", "size", "stream", "stack")
        }
        self.marks = [{"event": 0, "phase": phase, "step": 0}]
        self.owned: list[dict] = []
        self.touched: list[dict] = []

    def event(self, action: Action, address: int, size: int, stream: int = 0, stack: int = -1) -> None:
        values = (int(action), address, size, stream, stack)
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)

    def alloc(self, size: int, stream: int = 0, in_module: bool = False) -> int:
        reserved = self.allocator.reserved
        self._next_handle += 1
        block = self.allocator.malloc(self._next_handle, size, stream)
        if self.allocator.reserved > reserved:
            first = block
            self._streams[first.address] = stream
            self.event(Action.SEGMENT_ALLOC, first.address, self.allocator.reserved - reserved, stream)
        self.event(Action.ALLOC, block.address, size, stream, 0 if in_module else 1)
        self._handles[block.address] = self._next_handle
        self.requested[block.address] = size
        return block.address

    def stream_of(self, segment_address: int) -> int:
        return self._streams[segment_address]

    def free_requested(self, address: int) -> None:
        self.allocator.free(self._handles[address])
        self.event(Action.FREE_REQUESTED, address, self.requested[address])

    def free_completed(self, address: int) -> None:
        self.allocator.complete_free(self._handles.pop(address))
        self.event(Action.FREE_COMPLETED, address, self.requested[address])

    def free(self, *addresses: int) -> None:
        for address in addresses:
            self.free_requested(address)
            self.free_completed(address)

    def empty_cache(self) -> None:
        whole = [b for pool in self.allocator.pools() for b in pool if not b.is_split]
        for block in whole:
            self.event(Action.SEGMENT_FREE, block.address, block.size, self._streams[block.address])
        self.allocator.empty_cache()

    def mark(self, phase: str, step: int = 0) -> int:
        self.marks.append({"event": len(self.columns["action"]), "phase": phase, "step": step})
        return len(self.marks) - 1

    def own(self, owner: str, *addresses: int) -> None:
        self.owned.append({"mark": len(self.marks) - 1, "owner": owner, "addresses": list(addresses)})

    def touch(self, owner: str, address: int, size: int, **library: bool) -> None:
        mark = len(self.marks) - 1
        self.touched.append({"mark": mark, "owner": owner, "address": address, "bytes": size, **library})

    def history(self) -> History:
        columns = self.columns
        return History(columns["action"], columns["address"], columns["size"], columns["stream"])

    def as_json(self, **changes: object) -> dict:
        return {
            "format": 1,
            "pid": 4711,
            "argv": ["/home/u/train.py", "--lr", "1"],
            "python": "3.11.2",
            "torch_version": "2.14.1+cu130",
            "cuda_version": "13.0",
            "gpu": "NVIDIA A100 80GB PCIe",
            "alloc_conf": "",
            "actions": ACTIONS,
            "events": self.columns,
            "frames": [MODULE_CALL, USER_CODE],
            "stacks": [[0, 1], [1]],
            "marks": self.marks,
            "owned": self.owned,
            "touched": self.touched,
            "steps": 3,
            "end": "steps",
            "error": None,
            "unknown_calls": [],
            "invented": [],
            "read_back": 3,
            "inputs": [{"path": "/home/u/train.py", "size": 120, "mtime_ns": 5}],
            "peaks": {"allocated": 1, "reserved": 1},
            "complete": True,
        } | changes

    def trace(self, **changes: object) -> trace.Trace:
        return trace.parse(json.dumps(self.as_json(**changes)).encode(), "trace-4711.json")


def silent(**changes: object) -> trace.Trace:
    """A process that did not use the GPU."""
    content = {
        "format": 1,
        "pid": 1,
        "argv": ["prepare.py"],
        "torch_version": None,
        "cuda_version": None,
        "events": None,
        "end": "script",
        "reason": "this Python program did not import PyTorch",
    }
    return trace.parse(json.dumps(content | changes).encode(), "trace-1.json")
