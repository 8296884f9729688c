"""What NVML says about one GPU: the memory of a process and of the whole device, in bytes."""

from __future__ import annotations

from typing import Any


class NoNvml(Exception):
    """NVML cannot be used; the text says what to do."""


class Meter:
    """One GPU through NVML (package `nvidia-ml-py`)."""

    def __init__(self, gpu: str | None = None) -> None:
        """`gpu` is an index or UUID; the first GPU by default.

        Raises:
            NoNvml: the package or the driver is missing, or there is no such GPU.
        """
        try:
            import pynvml
        except ImportError:
            raise NoNvml("NVML's Python package is missing: pip install nvidia-ml-py") from None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self.handle = (
                pynvml.nvmlDeviceGetHandleByUUID(gpu)
                if gpu and not gpu.isdigit()
                else pynvml.nvmlDeviceGetHandleByIndex(int(gpu or 0))
            )
        except pynvml.NVMLError as error:
            raise NoNvml(f"NVML: {error}") from None

    def about(self) -> dict[str, Any]:
        """Name, UUID, driver and size of the GPU, and whether accounting mode is on."""
        nvml, handle = self._nvml, self.handle
        try:
            accounting = bool(nvml.nvmlDeviceGetAccountingMode(handle))
        except nvml.NVMLError:
            accounting = False
        return {
            "gpu": _text(nvml.nvmlDeviceGetName(handle)),
            "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "memory_bytes": nvml.nvmlDeviceGetMemoryInfo(handle).total,
            "accounting": accounting,
        }

    def processes(self) -> dict[int, int | None]:
        """Memory of each compute process by its PID; None where the driver does not tell."""
        found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        return {process.pid: process.usedGpuMemory for process in found}

    def process_bytes(self, pid: int) -> int | None:
        """Memory of one process; None if NVML does not know it (it counts PIDs outside of containers)."""
        try:
            return self.processes().get(pid)
        except self._nvml.NVMLError:
            return None

    def device_bytes(self) -> int:
        """Memory in use on the whole GPU."""
        used: int = self._nvml.nvmlDeviceGetMemoryInfo(self.handle).used
        return used

    def accounted_peak(self, pid: int) -> int | None:
        """The driver's own high-water mark of a process, if accounting mode is on."""
        try:
            peak: int = self._nvml.nvmlDeviceGetAccountingStats(self.handle, pid).maxMemoryUsage
        except self._nvml.NVMLError:
            return None
        return peak or None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
