"""The controls of the fake CUDA device (`libgpumem_cuda.so`), through ctypes."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from typing import Any, Dict, List, NamedTuple, Tuple

DEVICELESS = 90800  # the first cuDNN that answers for a GPU that is not there
LIMIT_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
INPUTS, BLAS_WORKSPACE, DNN_WORKSPACE, READ_BACK, SOLVER_WORKSPACE, ATTENTION_WORKSPACE = 1, 2, 3, 4, 5, 6


class Event(NamedTuple):
    """Something a fake library saw: in which interval, what, at which device address, how many bytes."""

    interval: int
    kind: int
    address: int
    size: int


class _Event(ctypes.Structure):
    _fields_ = [
        ("interval", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
    ]


class FakeDevice:
    """One loaded `libgpumem_cuda.so`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.indices: List[int] = []  # of the visible devices, as the node counts them
        self.limits: List[int] = []  # of the same, bytes that a client of MPS may take; 0: no limit
        library.gpumem_add_device.argtypes = [
            ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64,
            ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int,
        ]  # fmt: skip
        library.gpumem_publish.argtypes = [ctypes.c_char_p]
        library.gpumem_set_cudnn_library.argtypes = [ctypes.c_char_p]
        library.gpumem_set_cudnn_library.restype = None
        library.gpumem_mark.restype = None
        for name in ("gpumem_unknown_names", "gpumem_invented_names", "gpumem_library_names"):
            getattr(library, name).argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            getattr(library, name).restype = ctypes.c_size_t
        library.gpumem_communicators.restype = library.gpumem_kernels.restype = ctypes.c_size_t
        library.gpumem_communicators.argtypes = [ctypes.POINTER(ctypes.c_int), ctypes.c_size_t]
        library.gpumem_largest_convolution.restype = ctypes.c_uint64
        library.gpumem_events.argtypes = [ctypes.POINTER(_Event), ctypes.c_size_t]
        library.gpumem_events.restype = ctypes.c_size_t

    def configure(self, settings: Dict[str, Any], torch_folder: str) -> None:
        """Adds the devices that `CUDA_VISIBLE_DEVICES` leaves visible; before torch is imported."""
        library = self._library
        library.gpumem_set_cuda_version(cuda_version_of(torch_folder))
        cudnn, version = cudnn_of(torch_folder)
        if version:
            library.gpumem_set_cudnn_version(version)
        if version >= DEVICELESS:
            library.gpumem_set_cudnn_library(cudnn.encode())
        library.gpumem_set_limit(int(bool(settings.get("enforce_limit"))))
        limits = memory_limits(settings["devices"], os.environ.get(LIMIT_VARIABLE, ""))
        for gpu in visible(settings["devices"], os.environ.get("CUDA_VISIBLE_DEVICES")):
            limit = limits.get(gpu["index"], 0)
            self.indices.append(gpu["index"])
            self.limits.append(limit)
            major, minor = gpu["compute_capability"]
            library.gpumem_add_device(
                gpu["name"].encode(), gpu["uuid"].encode(),
                min(gpu["memory_bytes"], limit or gpu["memory_bytes"]), gpu["context_bytes"],
                major, minor, gpu["sm_count"], gpu["index"],
            )  # fmt: skip
            if "convolution_positions" in gpu:
                positions = (ctypes.c_uint64 * 3)(*gpu["convolution_positions"])
                library.gpumem_set_convolutions(len(self.indices) - 1, positions)
        if settings.get("node_dir"):
            library.gpumem_publish(settings["node_dir"].encode())

    def mark(self) -> None:
        """Begins a new interval in the log of events."""
        self._library.gpumem_mark()

    def hold_collectives(self, held: bool) -> None:
        """Whether PyTorch's watchdog of NCCL is told that no collective has ended yet."""
        self._library.gpumem_hold_collectives(int(held))

    def events(self) -> List[Event]:
        """All that was logged so far, in order."""
        count = self._library.gpumem_events(None, 0)
        buffer = (_Event * count)()
        count = min(count, self._library.gpumem_events(buffer, count))
        return [Event(e.interval, e.kind, e.address, e.bytes) for e in buffer[:count]]

    def unknown_calls(self) -> List[str]:
        """Functions that were called and that the fake device does not know."""
        return self._names(self._library.gpumem_unknown_names)

    def invented(self) -> List[str]:
        """Answers that the fake device made up and that may change how much memory is taken."""
        return self._names(self._library.gpumem_invented_names)

    def libraries(self) -> List[str]:
        """CUDA libraries of which the program has a handle."""
        return self._names(self._library.gpumem_library_names)

    def communicators(self) -> List[int]:
        """The ranks of each communicator of NCCL that was made."""
        count = self._library.gpumem_communicators(None, 0)
        buffer = (ctypes.c_int * count)()
        return list(buffer[: min(count, self._library.gpumem_communicators(buffer, count))])

    def kernels(self) -> int:
        """How many different kernels were launched."""
        return int(self._library.gpumem_kernels())

    def largest_convolution(self) -> int:
        """The most that cuDNN may have asked for as the workspace of a convolution (bytes), 0 without any."""
        return int(self._library.gpumem_largest_convolution())

    @staticmethod
    def _names(function: Any) -> List[str]:
        size = function(None, 0)
        buffer = ctypes.create_string_buffer(size + 1)
        function(buffer, size + 1)
        return [name for name in buffer.value.decode("utf-8", "replace").split("\n") if name]


def visible(devices: List[Dict[str, Any]], variable: Any) -> List[Dict[str, Any]]:
    """The devices that `CUDA_VISIBLE_DEVICES` shows, in its order.

    As the CUDA programming guide has it: indices or UUIDs (or their beginnings), up to the first one
    that is not there; an empty value hides all.
    """
    if variable is None:
        return devices
    shown = []
    for item in (part.strip() for part in variable.split(",")):
        matches = [
            gpu for gpu in devices
            if item and (str(gpu["index"]) == item or (not item.isdigit() and gpu["uuid"].startswith(item)))
        ]  # fmt: skip
        if not matches:
            break
        shown.append(matches[0])
    return shown


def memory_limits(devices: List[Dict[str, Any]], variable: str) -> Dict[int, int]:
    """Bytes that a client of MPS may take of the devices, by index: `0=8G,1=512M`, as NVIDIA documents it.

    What cannot be read limits nothing.
    """
    limits = {}
    for part in variable.split(","):
        match = re.fullmatch(r"\s*([\w-]+)=(\d{1,9})([GM])B?\s*", part, re.ASCII)
        if not match:
            continue
        for gpu in visible(devices, match[1]):
            limits[gpu["index"]] = int(match[2]) * 1024 ** (3 if match[3] == "G" else 2)
    return limits


def cuda_version_of(torch_folder: str) -> int:
    """The CUDA version that a torch package was built for, as CUDA writes it (13000 for 13.0)."""
    with open(os.path.join(torch_folder, "version.py"), encoding="utf-8") as file:
        match = re.search(r"^cuda\b.*?=\s*['\"](\d+)\.(\d+)", file.read(), re.MULTILINE)
    return int(match[1]) * 1000 + int(match[2]) * 10 if match else 13000


def cudnn_of(torch_folder: str) -> Tuple[str, int]:
    """The cuDNN that a torch package would load, and its version as cuDNN writes it (92400 for 9.24.0).

    It is looked for in the wheel beside torch, in a conda environment, and where a module would have it.
    A version of 0 is not known.
    """
    beside = os.path.join(os.path.dirname(torch_folder), "nvidia", "cudnn")
    modules = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    for root in (beside, sys.prefix, *map(os.path.dirname, modules)):
        library = os.path.join(root, "lib", "libcudnn.so.9")
        if os.path.exists(library):
            return library, _cudnn_version(os.path.join(root, "include", "cudnn_version.h"))
    return "", 0


def _cudnn_version(header: str) -> int:
    try:
        with open(header, encoding="utf-8") as file:
            parts = dict(re.findall(r"#define CUDNN_(MAJOR|MINOR|PATCHLEVEL)\s+(\d+)", file.read()))
    except OSError:
        return 0
    if len(parts) != 3:
        return 0
    return int(parts["MAJOR"]) * 10000 + int(parts["MINOR"]) * 100 + int(parts["PATCHLEVEL"])
