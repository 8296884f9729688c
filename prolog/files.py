"""Files that are there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def make_private(folder: Path) -> None:
    """Makes `folder` with mode 0700; missing folders above it get 0755, for sockets may lie there, too."""
    for parent in reversed(folder.parents):
        _make(parent, 0o755)
    _make(folder, 0o700)


def write(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Writes `data` to `path`, mode 0600, by way of a file beside it; `durable`: it survives a power cut.

    Raises:
        OSError: it cannot be written; nothing is left behind, and what was at `path` still is.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(
            beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        beside.replace(path)
        if durable:
            _sync(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def read(path: Path, limit: int) -> bytes:
    """The bytes of a regular file.

    Raises:
        OSError: it cannot be read, is a link, or is longer than `limit`.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(f"{path}: longer than {limit} bytes")
    return data


def _make(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(mode)
    except FileExistsError:
        return
    folder.chmod(mode)  # whatever the umask


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
