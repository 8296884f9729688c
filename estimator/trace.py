"""The trace of one Python process (what it allocated on the GPU, when, for whom) and its checking reader.

A trace is written inside the process of the user, so nothing in it is trusted: sizes are limited, every index
is checked, and texts are made printable. Addresses are device addresses, sizes bytes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from estimator import private_pools
from estimator.allocator import Action, History

MAX_BYTES = 512 * 1024**2  # of one file; two million events take about 100 MB
MAX_TRACES = 256
MAX_EVENTS = 4_000_000
MAX_OWNED_ADDRESSES = 5_000_000


class TraceError(Exception):
    """A trace cannot be used; the text names the file and what is wrong with it."""


class Phase(StrEnum):
    """What the program was doing."""

    SETUP = "setup"  # before the first forward pass
    FORWARD = "forward"  # from a step's end to the backward pass, data loading included
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    EVALUATION = "evaluation"  # from a forward pass without gradients to the next one with them


def printable(text: str) -> str:
    """The text without control characters, which could do harm on a terminal."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


Count = Annotated[int, Field(ge=0, lt=1 << 62)]
Word = Annotated[int, Field(ge=0, lt=1 << 64)]  # an address or a stream
Text = Annotated[str, Field(max_length=4096), AfterValidator(printable)]
Names = Annotated[tuple[Text, ...], Field(max_length=10_000)]
Column = Annotated[list[Count], Field(max_length=MAX_EVENTS)]
WordColumn = Annotated[list[Word], Field(max_length=MAX_EVENTS)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class Mark(_Model):
    """A moment that divides the history; interval k runs from `marks[k].event` up to `marks[k + 1].event`."""

    event: Count
    phase: Annotated[Phase, Field(strict=False)]
    step: Count  # optimizer steps before it
    batch: Count | None = None  # samples


class Owned(_Model):
    """Addresses of the tensors of one owner that are alive at the start of interval `mark`."""

    mark: Count
    owner: Literal["parameters", "gradients", "optimizer_state", "buffers"]
    addresses: list[Word]


class LoaderPass(_Model):
    """One walk over a data loader; `left_out` batches were not run (None: nobody knows how many)."""

    kind: Literal["training", "evaluation", "other"]
    batches: Count
    left_out: Count | None
    shapes: Count  # how many different shapes the batches had
    grows_by: Count = 0  # bytes that each batch kept on the GPU

    @property
    def kept_bytes(self) -> int | None:
        """What the batches that were not run would have kept; None if nobody knows how many they are."""
        if not self.grows_by:
            return 0
        return None if self.left_out is None else self.grows_by * self.left_out


class Place(_Model):
    """A line of the user's code."""

    file: Text
    line: Count


class Touched(_Model):
    """A place that a CUDA library was given within interval `mark`."""

    mark: Count
    owner: Literal["inputs", "workspaces"]
    address: Word
    bytes: Count
    cudnn: bool = False  # a workspace that cuDNN asked for, for one call
    cusolver: bool = False  # the same, cuSOLVER
    attention: bool = False  # the same, cuDNN for attention: the end of an allocation


class SizedByData(_Model):
    """An operator whose result has a size that follows data: it was taken at a bound, so often.

    `frames`: file, line and name of the functions of the program that called it, the innermost one first.
    """

    what: Text
    frames: Annotated[tuple[tuple[Text, int, Text], ...], Field(max_length=8, strict=False)] = ()
    count: Count


class Columns(_Model):
    """PyTorch's memory history as written; `action` is an index into `Trace.actions`, `stack` -1 for none."""

    action: Column
    address: WordColumn
    size: Column
    stream: WordColumn
    stack: Annotated[list[Annotated[int, Field(ge=-1)]], Field(max_length=MAX_EVENTS)]

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if len({len(self.action), len(self.address), len(self.size), len(self.stream), len(self.stack)}) > 1:
            raise ValueError("columns differ in length")
        return self


class UserError(_Model):
    """The exception that ended the program, and the line of the user's code where it came up."""

    type: Text
    message: Text
    file: Text | None = None
    line: Count | None = None
    hub: Text | None = None  # what was wanted of the Hugging Face Hub, and is not in the cache

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.file and self.line else ""
        message = " ".join(self.message.split())
        return f"{where}{self.type}: {message}" if message else f"{where}{self.type}"


class InputFile(_Model):
    """A file that the run depends on; the estimate holds while size and time, or content, stay.

    Without a time, there was no such file: the estimate holds while there is none.
    """

    path: Text
    size: Count
    mtime_ns: int | None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None


class ProcessGroup(_Model):
    """A process group of torch.distributed that the process is in; over NCCL, it has a communicator."""

    backend: Text
    ranks: Count


class PrivateSegment(_Model):
    """A segment of a private pool (of CUDA graphs, `MemPool`) that was held when the program ended."""

    address: Word
    bytes: Count
    pool: Annotated[int, Field(ge=1, lt=1 << 62)]


class Calls(_Model):
    """From history index `event[k]` on, the innermost module that is called is `module[k]` (-1: none)."""

    event: Annotated[list[Count], Field(max_length=200_000)]
    module: Annotated[list[Annotated[int, Field(ge=-1)]], Field(max_length=200_000)]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if len(self.event) != len(self.module):
            raise ValueError("columns differ in length")
        if self.event != sorted(self.event):
            raise ValueError("calls are out of order")
        return self


class Peaks(_Model):
    """What PyTorch itself counted in the traced run."""

    allocated: Count
    reserved: Count


@dataclass(frozen=True, slots=True)
class Events(History):
    """The memory history; `stack` is an index into `Trace.stacks`, -1 for none."""

    stack: Sequence[int]


class Trace(_Model):
    """What one Python process did on one GPU; `events` is None if nothing, and `reason` then says why.

    `device` is the GPU's number on its node; `started_ns` and `ended_ns` are of the process (Unix time).
    """

    format: Literal[1]
    pid: Count
    device: Count = 0
    rank: Count = 0
    world_size: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    groups: Annotated[tuple[ProcessGroup, ...], Field(max_length=100_000)] = ()
    started_ns: Count = 0
    ended_ns: Count = 0
    argv: Annotated[tuple[Text, ...], Field(max_length=10_000)] = ()
    python: Text | None = None
    torch_version: Text | None = None
    cuda_version: Text | None = None
    gpu: Text | None = None
    memory_limit: Count = 0  # bytes of the GPU that MPS lets the process take, if there is a limit
    alloc_conf: Text = ""
    actions: Names = ()
    columns: Annotated[Columns | None, Field(alias="events")] = None
    frames: Annotated[list[tuple[Text, int, Text]], Field(max_length=1_000_000)] = []
    stacks: Annotated[list[list[Count]], Field(max_length=1_000_000)] = []
    marks: Annotated[tuple[Mark, ...], Field(max_length=1_000_000)] = ()
    modules: Annotated[list[Text], Field(max_length=100_000)] = []
    calls: Calls | None = None
    owned: Annotated[tuple[Owned, ...], Field(max_length=1_000_000)] = ()
    touched: Annotated[tuple[Touched, ...], Field(max_length=2_000_000)] = ()
    complete: bool = True
    steps: Count = 0
    only_infers: bool = False
    unreached: Annotated[tuple[Place, ...], Field(max_length=1000)] = ()
    passes: Annotated[tuple[LoaderPass, ...], Field(max_length=10_000)] = ()
    end: Literal["steps", "steady", "script", "exception", "signal", "deadline", "untraceable"]
    error: UserError | None = None
    reason: Text | None = None
    unknown_calls: Names = ()
    invented: Names = ()
    libraries: Names = ()  # of CUDA, that the program has a handle of
    communicators: Annotated[
        tuple[Count, ...], Field(max_length=100_000, strict=False)
    ] = ()  # of NCCL: ranks
    kernels: Count = 0  # different ones that were launched
    largest_convolution: Count = 0  # bytes that cuDNN may have asked for at most as the workspace of one
    read_back: Count = 0
    sizes: Annotated[tuple[SizedByData, ...], Field(max_length=10_000)] = ()
    integers_read: Count = 0  # by the program, and made up
    inputs: Annotated[tuple[InputFile, ...], Field(max_length=10_000)] = ()
    made_up: Annotated[tuple[Text, ...], Field(max_length=100)] = ()  # data sets that were not there
    peaks: Peaks | None = None
    private_segments: Annotated[tuple[PrivateSegment, ...], Field(max_length=1_000_000)] = ()

    @property
    def is_of_another_framework(self) -> bool:
        """Whether the process computes by another library than PyTorch; see `tracer/run.py`."""
        return self.reason is not None and self.reason.endswith(", not PyTorch")

    @property
    def program(self) -> str:
        """The program, as its own `sys.argv` names it."""
        return os.path.basename(self.argv[0]) if self.argv and self.argv[0] else "python"  # noqa: PTH119

    @cached_property
    def events(self) -> Events | None:
        """The memory history; None if the process did not use the GPU."""
        if self.columns is None:
            return None
        known = {action.name.lower(): int(action) for action in Action}
        code = [known.get(name, -1) for name in self.actions]
        columns = self.columns
        actions = [code[action] for action in columns.action]
        ranges = [(one.address, one.bytes, one.pool) for one in self.private_segments]
        pools = private_pools.of_allocations(actions, columns.address, ranges)
        return Events(actions, columns.address, columns.size, columns.stream, columns.stack, pool=pools)

    @model_validator(mode="after")
    def _indices(self) -> Self:
        events = 0
        if self.columns is not None:
            events = len(self.columns.action)
            _check(self.columns.action, len(self.actions), "action")
            _check(self.columns.stack, len(self.stacks), "stack")
            if not self.marks or self.marks[0].event != 0:
                raise ValueError("the first mark is not at the first event")
        for stack in self.stacks:
            _check(stack, len(self.frames), "frame")
        if self.calls is not None:
            _check(self.calls.module, len(self.modules), "module")
        at = [mark.event for mark in self.marks]
        if at != sorted(at) or (at and at[-1] > events):
            raise ValueError("marks are out of order")
        _check([owned.mark for owned in self.owned], len(self.marks), "mark")
        _check([touched.mark for touched in self.touched], len(self.marks), "mark")
        if sum(len(owned.addresses) for owned in self.owned) > MAX_OWNED_ADDRESSES:
            raise ValueError("too many owned addresses")
        return self


def _check(indices: list[int], length: int, what: str) -> None:
    if indices and max(indices) >= length:
        raise ValueError(f"a {what} is not in its table")


def parse(data: bytes, source: str) -> Trace:
    """Checks the bytes of a trace; `source` is named in errors.

    Raises:
        TraceError: the bytes are not a trace of format 1, or contradict themselves.
    """
    try:
        return Trace.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TraceError(
            f"{source}: not a usable trace: {where + ': ' if where else ''}{first['msg']}"
        ) from None


def read(path: Path) -> Trace:
    """Reads one trace. No link, device or pipe is opened, and no more than `MAX_BYTES` are read.

    Raises:
        TraceError: the file cannot be read, is too large, or is not a usable trace.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise TraceError(f"{path}: not a regular file")
            if os.fstat(descriptor).st_size > MAX_BYTES:
                raise TraceError(
                    f"{path}: a trace of more than {MAX_BYTES // 1024**2} MiB: trace fewer steps"
                )
            data = file.read(MAX_BYTES)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    return parse(data, str(path))


def read_all(folder: Path) -> list[Trace]:
    """Reads all traces in a folder (`trace-PID-N.json`), in the order in which the processes ended.

    Raises:
        TraceError: the folder or one of the traces cannot be read.
    """
    try:
        paths = sorted(folder.glob("trace-*.json"), key=lambda path: (path.lstat().st_mtime_ns, path.name))
    except OSError as error:
        raise TraceError(f"{folder}: cannot be read: {error.strerror}") from None
    if len(paths) > MAX_TRACES:
        raise TraceError(f"{folder}: the job runs more than {MAX_TRACES} Python programs")
    return [read(path) for path in paths]
