"""Checkpoints are mapped into memory instead of read: only what the program looks at is taken from the disk.

safetensors maps its files by itself. `torch.load` does so when it is asked to, and when the file is one that
`torch.save` has written in the format of torch 1.6 and later (a ZIP archive).
"""

from __future__ import annotations

import os
import zipfile
from typing import Any, Optional

from .patching import put_before


def map_files() -> None:
    """Lets `torch.load` map the files that it can."""
    import torch

    put_before(torch, "load", _load)
    torch.serialization.load = torch.load


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
