"""NVML behind a small Protocol: GPUs, the processes on them, and the driver's per-process accounting.

Every failure of NVML, down to a missing library, is one typed error: `NvmlProblem`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")

_NOT_PLAUSIBLE = 2**53  # bytes; NVML_VALUE_NOT_AVAILABLE is 2**64 - 1

_PROCESS_LISTS = (
    ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"),
    ("nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2"),
)
"""Per kind of process, newest first: drivers of different age export different versions."""


class NvmlProblem(Exception):
    """NVML cannot say. `kind` is a short name: `library_not_found`, `gpu_is_lost`, `not_supported`, …"""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"nvml: {text}")
        self.kind = kind


@dataclass(frozen=True)
class Gpu:
    """A GPU of this node; `mig`: it is split by MIG, or is itself an instance."""

    uuid: str
    model: str | None
    memory_bytes: int | None
    mig: bool


@dataclass(frozen=True)
class Usage:
    """A process that holds a context on a GPU now, and the bytes it holds there (None: not told)."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True)
class Account:
    """The driver's own record of a process, running or ended.

    `start_us` is Unix time in µs; `duration_us` is None while the process runs.
    """

    pid: int
    peak_bytes: int | None
    start_us: int
    duration_us: int | None


class GpuReader(Protocol):
    """What gpumem reads from a GPU. Every method raises `NvmlProblem`."""

    def gpu(self, name: int | str) -> Gpu:
        """The GPU with this index (in the order of the PCI bus) or UUID."""

    def any_mig(self) -> bool:
        """Whether a GPU of this node is split by MIG."""

    def usages(self, uuid: str) -> list[Usage]:
        """The compute processes on a GPU now."""

    def accounting(self, uuid: str) -> bool:
        """Whether accounting mode is on."""

    def enable_accounting(self, uuid: str) -> None:
        """Switches accounting mode on; needs root."""

    def accounts(self, uuid: str) -> list[Account]:
        """Every process that the driver's ring of records still holds."""

    def account(self, uuid: str, pid: int) -> Account | None:
        """The record of the latest process with this PID; None: there is none."""

    def close(self) -> None:
        """Lets NVML go; never fails."""


def find(reader: GpuReader, name: str) -> Gpu:
    """The GPU that Slurm calls `name`: an index or a UUID.

    Raises:
        NvmlProblem: there is none; or MIG is on, and then Slurm's indices count its instances, NVML's do not.
    """
    if not name.isdecimal():
        return reader.gpu(name)
    if reader.any_mig():
        raise NvmlProblem("mig", "MIG is on, and Slurm gives indices instead of UUIDs: not measured")
    return reader.gpu(int(name))


class NvmlReader:
    """The GPUs of this node through `pynvml` (package nvidia-ml-py)."""

    def __init__(self) -> None:
        """Raises NvmlProblem: pynvml, libnvidia-ml.so.1 or the driver is missing, or NVML does not start."""
        try:
            import pynvml
        except ImportError as error:
            raise NvmlProblem("pynvml_not_found", f"the Python package nvidia-ml-py: {error}") from None
        self._nvml: Any = pynvml
        self._handles: dict[str, Any] = {}
        self._call("nvmlInit")

    def gpu(self, name: int | str) -> Gpu:  # noqa: D102 (as all methods here: see GpuReader)
        if isinstance(name, int):
            handle = self._call("nvmlDeviceGetHandleByIndex", name)
            uuid = str(self._call("nvmlDeviceGetUUID", handle))
            self._handles[uuid] = handle
        else:
            uuid, handle = name, self._handle(name)
        return Gpu(
            uuid=uuid,
            model=_or_none(lambda: str(self._call("nvmlDeviceGetName", handle))),
            memory_bytes=_or_none(lambda: int(self._call("nvmlDeviceGetMemoryInfo", handle).total)),
            mig=uuid.startswith("MIG-") or self._mig(handle),
        )

    def any_mig(self) -> bool:  # noqa: D102
        handles = (
            _or_none(partial(self._call, "nvmlDeviceGetHandleByIndex", index))
            for index in range(self._call("nvmlDeviceGetCount"))
        )
        return any(self._mig(handle) for handle in handles if handle is not None)

    def usages(self, uuid: str) -> list[Usage]:  # noqa: D102
        used: dict[int, int | None] = {}
        for names in _PROCESS_LISTS:
            required = names is _PROCESS_LISTS[0]
            for process in self._first(names, required, self._handle(uuid)):
                used.setdefault(int(process.pid), _available(process.usedGpuMemory))
        return [Usage(pid, held) for pid, held in used.items()]

    def accounting(self, uuid: str) -> bool:  # noqa: D102
        return bool(self._call("nvmlDeviceGetAccountingMode", self._handle(uuid)))

    def enable_accounting(self, uuid: str) -> None:  # noqa: D102
        self._call("nvmlDeviceSetAccountingMode", self._handle(uuid), 1)

    def accounts(self, uuid: str) -> list[Account]:  # noqa: D102
        pids = self._call("nvmlDeviceGetAccountingPids", self._handle(uuid))
        found = (self.account(uuid, int(pid)) for pid in dict.fromkeys(pids))
        return [account for account in found if account is not None]

    def account(self, uuid: str, pid: int) -> Account | None:  # noqa: D102
        try:
            stats = self._call("nvmlDeviceGetAccountingStats", self._handle(uuid), pid)
        except NvmlProblem as problem:
            if problem.kind == "not_found":
                return None
            raise
        return Account(
            pid=pid,
            peak_bytes=_available(stats.maxMemoryUsage) or None,  # some drivers answer 0 for "unknown"
            start_us=int(stats.startTime),
            duration_us=None if stats.isRunning else int(stats.time) * 1000,
        )

    def close(self) -> None:  # noqa: D102
        _or_none(lambda: self._call("nvmlShutdown"))

    def _mig(self, handle: Any) -> bool:
        return _or_none(lambda: bool(self._call("nvmlDeviceGetMigMode", handle)[0])) or False

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            self._handles[uuid] = self._call("nvmlDeviceGetHandleByUUID", uuid)
        return self._handles[uuid]

    def _first(self, names: tuple[str, ...], required: bool, handle: Any) -> list[Any]:
        """The answer of the first function that this driver has; none: an error only if `required`."""
        missing: NvmlProblem | None = None
        for name in names:
            try:
                return list(self._call(name, handle))
            except NvmlProblem as problem:
                if problem.kind == "function_not_found":
                    missing = problem
                elif required:
                    raise
                else:
                    return []
        if required and missing:
            raise missing
        return []

    def _call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._nvml, name, None)
        if function is None:
            raise NvmlProblem("function_not_found", f"{name}: not known to the installed pynvml")
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            # the classes are named after NVML's codes, e.g. NVMLError_GpuIsLost
            kind = _snake(type(error).__name__.removeprefix("NVMLError").lstrip("_")) or "unknown"
            raise NvmlProblem(kind, f"{name}: {error}") from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise NvmlProblem("unusable", f"{name}: {error}") from None


def _or_none(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except NvmlProblem:
        return None


def _available(value: int | None) -> int | None:
    return None if value is None or value >= _NOT_PLAUSIBLE else int(value)


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")
