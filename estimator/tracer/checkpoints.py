"""Checkpoints are mapped into memory instead of read: only what the program looks at is taken from the disk.

`torch.load` maps a file when it is asked to, and when the file is one that `torch.save` has written in the
format of torch 1.6 and later (a ZIP archive). safetensors maps its files where they go to the CPU.
"""

from __future__ import annotations

import os
import sys
import zipfile
from typing import Any, Optional

from .patching import put_before


def map_files() -> None:
    """Lets `torch.load` and `safetensors.safe_open` map the files that they can."""
    import torch

    put_before(torch, "load", _load)
    torch.serialization.load = torch.load
    _map_safetensors()


def _load(original: Any, file: Any, *arguments: Any, **options: Any) -> Any:
    path = None if options.get("mmap") is not None else _mappable(file)
    if path is None:
        return original(file, *arguments, **options)
    return original(path, *arguments, **dict(options, mmap=True))


def _mappable(file: Any) -> Optional[str]:
    """The path of a ZIP archive that is to be read from its beginning."""
    try:
        if isinstance(file, (str, os.PathLike)):
            path = os.fspath(file)
        elif isinstance(file.name, str) and file.tell() == 0 and "+" not in getattr(file, "mode", ""):
            path = file.name
        else:
            return None
        return path if isinstance(path, str) and zipfile.is_zipfile(path) else None
    except (AttributeError, OSError, ValueError):
        return None


def _map_safetensors() -> None:
    """`safe_open` on the GPU reads its file through pinned memory: it opens it on the CPU, which maps it."""
    try:
        import safetensors
    except ImportError:
        return
    opened = safetensors.safe_open

    def safe_open(filename: Any, framework: str = "", device: Any = "cpu", **options: Any) -> Any:
        on_cpu = device is None or str(device) == "cpu"
        if on_cpu or framework not in ("pt", "torch", "pytorch"):
            return opened(filename, framework, device=device, **options)
        options.pop("backend", None)
        return _MovedFile(opened(filename, framework, device="cpu", **options), device)

    for name in ("safetensors", "safetensors.torch"):
        module = sys.modules.get(name)
        if getattr(module, "safe_open", None) is opened:
            setattr(module, "safe_open", safe_open)  # noqa: B010 - mypy knows the module's own


class _Moved:
    """An object of safetensors whose tensors lie on the CPU, and are moved to a device when asked for."""

    def __init__(self, inner: Any, device: Any) -> None:
        self._inner, self._device = inner, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _MovedFile(_Moved):
    def __enter__(self) -> _MovedFile:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._inner.__exit__(*error)

    def get_tensor(self, name: str) -> Any:
        return self._inner.get_tensor(name).to(self._device)

    def get_tensors(self) -> Any:
        return {name: self.get_tensor(name) for name in self._inner.keys()}  # noqa: SIM118 - not a dict

    def get_slice(self, name: str) -> Any:
        return _MovedSlice(self._inner.get_slice(name), self._device)


class _MovedSlice(_Moved):
    def __getitem__(self, index: Any) -> Any:
        return self._inner[index].to(self._device)
