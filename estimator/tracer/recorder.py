"""Takes PyTorch's own memory history as the trace, and notes beside it what the program was doing.

A mark divides the history: one tiny allocation on a stream of its own, which is taken out again when the
trace is written. Being in the same history, marks are ordered with the allocations exactly, also with
those of the autograd thread. At a mark, the addresses of parameters, gradients and optimizer state tell
whose the blocks are.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import threading
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import backend, compile, repeats
from . import device as fake
from .life import Life, describe
from .modules import ModuleCalls
from .ranks import Collectives

ACTIONS = (
    "alloc", "free_requested", "free_completed",
    "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom",
)  # fmt: skip
MAX_FRAMES = 64  # of a stack, from its innermost one
MARK_BYTES, CALL_BYTES = 512, 1024  # tell marks from calls of modules in the history
TOUCHED = {
    fake.INPUTS: "inputs",
    fake.BLAS_WORKSPACE: "workspaces",
    fake.DNN_WORKSPACE: "workspaces",
    fake.SOLVER_WORKSPACE: "workspaces",
    fake.ATTENTION_WORKSPACE: "workspaces",
}
FOR_ONE_CALL = {
    fake.DNN_WORKSPACE: "cudnn",
    fake.SOLVER_WORKSPACE: "cusolver",
    fake.ATTENTION_WORKSPACE: "attention",
}


class Recorder:
    """Records from the first use of the GPU until `collect`.

    A forked process is not recorded, unless it is the first to use the GPU: `adopt` is called there.
    """

    def __init__(self, device: Any, life: Life, max_events: int, adopt: Callable[[], None]) -> None:
        self._device, self.life, self._max_events = device, life, max_events
        self._adopt = adopt
        self._collectives = Collectives(device.hold_collectives)
        self._streams: Dict[int, Any] = {}  # of the marks, by device
        self._first_marks: Dict[int, int] = {}
        self._first_calls: Dict[int, int] = {}
        self._marks: List[Dict[str, Any]] = []
        self._passes: List[Any] = []  # the pass over a loader at each mark
        self._owned: List[Dict[str, Any]] = []
        self._in_backward = False
        self._main = threading.get_ident()
        self._depth = 0  # of module calls in the main thread
        self._outer_steps = 0  # that are going on, and take steps of optimizers within
        self._stepped: Any = None  # an optimizer that took a step within
        self._forked = False  # a data loading worker, whose modules are transforms: CUDA may not be touched
        self._held: List[int] = []
        self._set_history: Any = None
        self._stacks_of: Optional[str] = None
        self._calls = ModuleCalls(lambda: self._note(CALL_BYTES))

    @property
    def recording(self) -> bool:
        """Whether this process is the one that is recorded, and has used the GPU."""
        return bool(self._streams) and not self._forked

    def attach(self) -> None:
        """Hooks into torch."""
        import torch
        import torch.optim.optimizer as optimizers

        self._torch = torch
        os.register_at_fork(after_in_child=self._leave_alone)
        self._collectives.attach(torch)
        self._is_compiling = getattr(torch.compiler, "is_dynamo_compiling", torch.compiler.is_compiling)
        torch.cuda._lazy_call(self._start)
        torch.autograd.backward = self._around_backward(torch.autograd.backward)
        torch.autograd.grad = self._around_backward(torch.autograd.grad)
        optimizers.register_optimizer_step_pre_hook(self._before_step)
        optimizers.register_optimizer_step_post_hook(lambda optimizer, *_: self._after_step(optimizer))
        optimizers.Optimizer.__init__ = self._around_construction(optimizers.Optimizer.__init__)
        # not the global hooks of modules: they are seen, and compiled, by torch.compile
        torch.nn.Module.__call__ = self._around_forward(torch.nn.Module.__call__)

    def collect(self) -> List[Dict[str, Any]]:
        """The recorded part of the trace of each GPU (see `estimator/trace.py` for its form)."""
        torch = self._torch
        self._own_modules(self._mark(self._marks[-1]["phase"]))
        peaks = {
            index: {
                "allocated": torch.cuda.max_memory_allocated(index),
                "reserved": torch.cuda.max_memory_reserved(index),
            }
            for index in self._streams
        }
        with _without_inductor(torch):
            snapshot = torch.cuda.memory._snapshot()
        events = self._device.events()
        shared = {
            "alloc_conf": str(snapshot.get("allocator_settings", {}).get("PYTORCH_CUDA_ALLOC_CONF", "")),
            "actions": list(ACTIONS),
            "owned": self._owned,
            "touched": _touched(events, len(self._marks)),
            "steps": self.life.steps(),
            "passes": self.life.told(),
            "only_infers": self.life.only_infers,
            "unknown_calls": self._device.unknown_calls(),
            "invented": self._device.invented() + compile.assumptions() + backend.assumptions(),
            "libraries": self._device.libraries(),
            "communicators": self._device.communicators(),
            "kernels": self._device.kernels(),
            "largest_convolution": self._device.largest_convolution(),
            "read_back": sum(event.kind == fake.READ_BACK for event in events),
        }
        traces = [
            dict(
                shared,
                peaks=peaks[index],
                private_segments=_private(snapshot["segments"], index),
                **self._of_one(index, snapshot["device_traces"][index]),
            )
            for index in sorted(self._streams)
        ]
        return [trace for trace in traces if trace["events"]["action"]] or traces[:1]

    def _of_one(self, index: int, history: List[Dict[str, Any]]) -> Dict[str, Any]:
        columns, positions, calls, frames, stacks = self._columns(history, self._streams[index].cuda_stream)
        complete = len(history) < self._max_events
        # a history that is full has lost its beginning
        earlier = self._first_marks[index] if complete else max(0, len(self._marks) - len(positions))
        positions = [0] * earlier + positions
        calls = [0] * self._first_calls[index] + calls
        ended = [
            at
            for at, mark, before in zip(positions[1:], self._marks[1:], self._marks)  # noqa: B905
            if mark["step"] > before["step"]
        ]
        same = repeats.left_out(columns, ended)
        columns = repeats.without(columns, same)
        positions = [repeats.moved(at, same) for at in positions]
        calls = [repeats.moved(at, same) for at in calls]
        marks = [
            {"event": at, **mark, "phase": _phase(mark["phase"], during)}
            for at, mark, during in zip(positions, self._marks, self._passes)  # noqa: B905 - newer than 3.9
        ]  # fmt: skip
        marks[0]["event"] = 0
        return {
            "device": self._device.indices[index],
            "memory_limit": self._device.limits[index],
            "gpu": self._torch.cuda.get_device_name(index),
            "events": columns,
            "frames": frames,
            "stacks": stacks,
            "marks": marks,
            "modules": self._calls.names,
            "calls": {"event": calls, "module": self._calls.moments[: len(calls)]},
            "complete": complete,
        }

    def _leave_alone(self) -> None:
        self._forked = True

    def _start(self) -> None:
        """Called by torch as soon as CUDA is initialised, before the first allocation."""
        torch = self._torch
        if self._forked:
            self._forked = False
            self._adopt()
        self._set_history = torch.cuda.memory._record_memory_history
        self._record("alloc")
        # a program that records a history of its own, shorter, or no longer, gets what it can of this one
        torch.cuda.memory._record_memory_history = lambda *arguments, **options: None
        self._open_stream(torch.cuda.current_device())
        self._mark("setup")

    def _open_stream(self, index: int) -> None:
        self._streams[index] = self._torch.cuda.Stream(index)
        self._first_marks[index] = len(self._marks)
        self._first_calls[index] = len(self._calls.moments)

    def _mark(self, phase: str) -> int:
        """Begins an interval; returns its number."""
        torch = self._torch
        for index in range(len(self._device.indices)):
            if index not in self._streams and torch._C._cuda_hasPrimaryContext(index):
                self._open_stream(index)
        self._note(MARK_BYTES)
        if self._marks:
            self._device.mark()
        self._marks.append({"phase": phase, "step": self.life.steps(), "batch": self.life.batch})
        self._passes.append(self.life.current)
        return len(self._marks) - 1

    def _note(self, size: int) -> None:
        """Puts a moment into the history of each GPU, of the kind that `size` tells."""
        torch = self._torch
        for index, stream in self._streams.items():
            with torch.cuda.device(index):
                address = torch._C._cuda_cudaCachingAllocator_raw_alloc(size, stream.cuda_stream)
                torch._C._cuda_cudaCachingAllocator_raw_delete(address)

    def _mark_batch(self, phase: str, batch: Optional[int]) -> None:
        """A forward pass begins: an interval of its own, unless the one that goes on is the same."""
        current = self._marks[-1]
        if current["phase"] == phase and current["batch"] in (None, batch):
            current["batch"], self._passes[-1] = batch, self.life.current
        else:
            self._mark(phase)
            self._marks[-1]["batch"] = batch

    def allocated(self) -> int:
        """Bytes allocated on the GPU."""
        return int(self._torch.cuda.memory_allocated()) if self.recording else 0

    def allocations(self) -> int:
        """How many there were so far, without those that note moments."""
        count = int(self._torch.cuda.memory_stats().get("allocation.all.allocated", 0))
        return count - len(self._marks) - len(self._calls.moments)

    def hold(self, size: int) -> None:
        """Allocates what batches that are left out would have kept."""
        if self.recording and size > 0:
            self._held.append(self._torch._C._cuda_cudaCachingAllocator_raw_alloc(size, 0))

    def release(self) -> None:
        """Frees what is held."""
        while self._held:
            self._torch._C._cuda_cudaCachingAllocator_raw_delete(self._held.pop())

    def _around_forward(self, function: Any) -> Any:
        """Tells of the module calls of the main thread."""

        @functools.wraps(function)
        def __call__(module: Any, *arguments: Any, **options: Any) -> Any:
            if self._is_compiling() or self._in_backward or threading.get_ident() != self._main:
                return function(module, *arguments, **options)
            if not self._depth:
                self._forward(arguments, options)
            self._depth += 1
            noted = self.recording and not self.life.waits_for_a_loop and self._calls.enter(module)
            try:
                return function(module, *arguments, **options)
            finally:
                self._depth -= 1
                if noted:
                    self._calls.leave()

        return __call__

    def _forward(self, arguments: Any, options: Any) -> None:
        if not self.recording:
            return
        batch = self.life.batch
        if batch is None:
            with contextlib.suppress(Exception):  # arguments may be any objects
                batch, _ = describe((*arguments, *options.values()))
        if self._torch.is_grad_enabled():
            self.release()
            self.life.forwards += 1
            self._mark_batch("forward", batch)
        else:
            self._record("alloc")
            self._mark_batch("evaluation", batch)
            self.life.inferred(lambda: int(self._torch.cuda.max_memory_allocated()))

    def _around_construction(self, function: Any) -> Any:
        @functools.wraps(function)
        def __init__(optimizer: Any, *arguments: Any, **options: Any) -> None:
            function(optimizer, *arguments, **options)
            self.life.knows(optimizer)

        return __init__

    def _around_backward(self, function: Any) -> Any:
        @functools.wraps(function)
        def backward(*arguments: Any, **options: Any) -> Any:
            if not self.recording or self._in_backward:
                return function(*arguments, **options)
            self._in_backward = True
            self.life.backwards += 1
            self._collectives.settle(self.life.steps())
            self._mark("backward")
            try:
                return function(*arguments, **options)
            finally:
                self._in_backward = False
                self._mark("forward")

        return backward

    def _before_step(self, optimizer: Any, arguments: Any, options: Any) -> None:
        if not self.recording:
            return
        index = self._mark("optimizer")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._own(index, "parameters", parameters)
        self._own(index, "gradients", [p.grad for p in parameters if p.grad is not None])

    def _after_step(self, optimizer: Any) -> None:
        if not self.recording:
            return
        self._own(self._mark("forward"), "optimizer_state", _nested(list(optimizer.state.values())))
        if self._outer_steps:
            self._stepped = optimizer
        else:
            self._count_step(optimizer)

    def _count_step(self, optimizer: Any) -> None:
        self.life.took_step(optimizer)
        self._marks[-1]["step"] = self.life.steps()
        self.life.may_end()
        if self.life.waits_for_a_loop:
            self._record(None)

    def _record(self, stacks_of: Optional[str]) -> None:
        """Goes on with the history, with stacks ("alloc") or without, which takes half of the time."""
        if stacks_of != self._stacks_of:
            self._stacks_of = stacks_of
            self._set_history("all", context=stacks_of, stacks="python", max_entries=self._max_events)

    def as_one_step(self, function: Any) -> Any:
        """Wraps a function: the optimizer steps that it takes, such as one for each group, are one."""

        @functools.wraps(function)
        def step(*arguments: Any, **options: Any) -> Any:
            self._outer_steps += 1
            try:
                result = function(*arguments, **options)
            finally:
                self._outer_steps -= 1
            if self._stepped is not None and not self._outer_steps:
                optimizer, self._stepped = self._stepped, None
                self._count_step(optimizer)
            return result

        return step

    def _own(self, index: int, owner: str, tensors: Any) -> None:
        with warnings.catch_warnings():  # of fake tensors; a program may have made them errors
            warnings.simplefilter("ignore")
            addresses = {address for tensor in tensors if (address := self._address(tensor))}
        if addresses:
            self._owned.append({"mark": index, "owner": owner, "addresses": sorted(addresses)})

    def _address(self, tensor: Any) -> Optional[int]:
        torch = self._torch
        try:
            if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
                return int(tensor.untyped_storage().data_ptr())
        except Exception:  # sparse and wrapper tensors have no storage of their own; subclasses run any code
            return None
        return None

    def _own_modules(self, index: int) -> None:
        """Parameters that no optimizer knows (frozen ones) and buffers, of all modules alive."""
        kind = self._torch.nn.Module
        # the type is asked, not the object: a proxy's __class__ may run code of the user
        modules = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
        for owner in ("parameters", "buffers"):
            tensors = [t for m in modules for t in list((m.__dict__.get("_" + owner) or {}).values())]
            self._own(index, owner, tensors)

    def _columns(
        self, history: List[Dict[str, Any]], own: int
    ) -> Tuple[Dict[str, List[int]], List[int], List[int], List[List[Any]], List[List[int]]]:
        """History as columns; where marks and calls (on stream `own`) were; frames and stacks, each once."""
        codes = {name: code for code, name in enumerate(ACTIONS)}
        columns: Dict[str, List[int]] = {
            name: [] for name in ("action", "address", "size", "stream", "stack")
        }
        action, address, size, stream, stack = columns.values()
        positions: List[int] = []
        calls: List[int] = []
        tables = _Stacks()
        for entry in history:
            name = entry["action"]
            if entry["stream"] == own:
                if name == "alloc":
                    (calls if entry["size"] == CALL_BYTES else positions).append(len(action))
                continue
            if name not in codes:
                continue
            action.append(codes[name])
            address.append(entry.get("addr", 0))
            size.append(entry["size"])
            stream.append(entry["stream"])
            stack.append(tables.number(entry.get("frames")) if name == "alloc" else -1)
        return columns, positions, calls, tables.frames, tables.stacks


class _Stacks:
    """Every frame and every stack is written once."""

    def __init__(self) -> None:
        self.frames: List[List[Any]] = []
        self.stacks: List[List[int]] = []
        self._frames: Dict[Tuple[str, int, str], int] = {}
        self._stacks: Dict[Tuple[int, ...], int] = {}
        self._by_identity: Dict[Tuple[int, ...], int] = {}

    def number(self, frames: Any) -> int:
        """The number of a stack, -1 for an empty one."""
        if not frames:
            return -1
        objects = tuple(map(id, frames[:MAX_FRAMES]))  # of one snapshot, which keeps and shares them
        known = self._by_identity.get(objects)
        if known is None:
            key = tuple(self._frame(frame) for frame in frames[:MAX_FRAMES])
            known = self._by_identity[objects] = self._stacks.setdefault(key, len(self._stacks))
            if known == len(self.stacks):
                self.stacks.append(list(key))
        return known

    def _frame(self, frame: Dict[str, Any]) -> int:
        key = (frame["filename"], frame["line"], frame["name"])
        known = self._frames.setdefault(key, len(self._frames))
        if known == len(self.frames):
            self.frames.append(list(key))
        return known


@contextlib.contextmanager
def _without_inductor(torch: Any) -> Iterator[None]:
    """A snapshot looks for Inductor's generated code, and would import it (over a second) to find none."""
    imported = "_inductor" in vars(torch)
    if not imported:
        torch._inductor = None
    try:
        yield
    finally:
        if not imported:
            del torch._inductor


def _private(segments: List[Dict[str, Any]], device: int) -> List[Dict[str, int]]:
    """The segments of private pools (CUDA graphs, MemPool); pools are numbered from 1."""
    numbers: Dict[Any, int] = {None: 0, (0, 0): 0}
    found = [
        {
            "address": segment["address"],
            "bytes": segment["total_size"],
            "pool": numbers.setdefault(segment.get("segment_pool_id"), len(numbers) - 1),
        }
        for segment in segments
        if segment["device"] == device
    ]
    return [segment for segment in found if segment["pool"]]


def _touched(events: List[fake.Event], marks: int) -> List[Dict[str, Any]]:
    """Each place that a library wrote to, once an interval; workspaces for one call once for each size."""
    seen = {}
    for event in events:
        if event.kind in TOUCHED and event.interval < marks:
            library = FOR_ONE_CALL.get(event.kind, "")
            key = (event.interval, TOUCHED[event.kind], event.address, library, event.size if library else 0)
            seen[key] = event.size
    return [
        {
            "mark": interval,
            "owner": owner,
            "address": address,
            "bytes": size,
            "cudnn": library == "cudnn",
            "cusolver": library == "cusolver",
            "attention": library == "attention",
        }
        for (interval, owner, address, library, _), size in seen.items()
    ]


def _phase(phase: str, during: Any) -> str:
    """A forward pass without gradients that serves training (a teacher) is no evaluation."""
    return "forward" if phase == "evaluation" and during is not None and during.backwards else phase


def _nested(values: Any, depth: int = 4) -> Iterator[Any]:
    """What lies in dicts, lists and tuples."""
    for value in values:
        if isinstance(value, dict) and depth:
            yield from _nested(list(value.values()), depth - 1)
        elif isinstance(value, (list, tuple)) and depth:
            yield from _nested(value, depth - 1)
        else:
            yield value
