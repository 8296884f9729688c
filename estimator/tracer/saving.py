"""Checkpoints are written without the bytes of large tensors: files of the right size and form, with holes.

They can be read again, as the program may do with its best model. Small tensors keep their values: states of
random number generators and counters must be what they were.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import struct
from typing import Any, Dict

from .torch_import import when_module_loads

LARGE = 1 << 20  # bytes


def without_bytes() -> None:
    """Changes `torch.save`, and `safetensors.torch.save_file` when it is imported."""
    import torch

    serialization = torch.serialization
    writer = getattr(torch._C, "PyTorchFileWriter", None)
    if hasattr(writer, "write_record_metadata") and hasattr(serialization, "_save"):  # torch 2.6 and newer
        serialization._save = _with_holes(torch, serialization._save)
    when_module_loads("safetensors.torch", _change_safetensors)


def _with_holes(torch: Any, save: Any) -> Any:
    @functools.wraps(save)
    def _save(obj: Any, zip_file: Any, *arguments: Any, **options: Any) -> Any:
        with _left_on_the_gpu(torch):
            return save(obj, _Writer(zip_file), *arguments, **options)

    return _save


class _Writer:
    """A writer of zip files that leaves room for large records."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def write_record(self, name: str, data: Any, size: int) -> Any:
        if name.startswith("data/") and size >= LARGE:
            return self._writer.write_record_metadata(name, size)
        return self._writer.write_record(name, data, size)


@contextlib.contextmanager
def _left_on_the_gpu(torch: Any) -> Any:
    """Large storages are not copied to the host first."""
    kind = torch.UntypedStorage
    to_host = kind.cpu

    @functools.wraps(to_host)
    def cpu(storage: Any) -> Any:
        return storage if storage.nbytes() >= LARGE else to_host(storage)

    own = "cpu" in vars(kind)
    kind.cpu = cpu
    try:
        yield
    finally:
        if own:
            kind.cpu = to_host
        else:
            del kind.cpu


def _change_safetensors(module: Any) -> None:
    save = module.save_file
    names = {kind: name for name, kind in module._TYPES.items()}
    check = getattr(module, "_evaluate_tensors_for_save", lambda tensors: None)

    @functools.wraps(save)
    def save_file(tensors: Any, filename: Any, metadata: Any = None) -> Any:
        large = isinstance(tensors, dict) and any(_size(tensor) >= LARGE for tensor in tensors.values())
        if not large or any(tensor.dtype not in names for tensor in tensors.values()):
            return save(tensors, filename, metadata)
        check(tensors)
        _write_safetensors(tensors, filename, metadata, names)
        return None

    module.save_file = save_file


def _write_safetensors(tensors: Any, filename: Any, metadata: Any, names: Dict[Any, str]) -> None:
    """The format: length of the header, header (JSON), data; wider types first, as its own writer has it."""
    order = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: Dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, tensor in order:
        begin, end = end, end + _size(tensor)
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(filename, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in order:
            if _size(tensor) < LARGE:
                file.write(_bytes_of(tensor))
            else:
                file.seek(_size(tensor), os.SEEK_CUR)
        file.truncate(8 + len(text) + end)


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _bytes_of(tensor: Any) -> bytes:
    host = tensor.detach().cpu().contiguous()
    return ctypes.string_at(host.data_ptr(), _size(host)) if host.numel() else b""
