"""Folders for a while, that go whatever an untrusted program has left in them."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def temporary(prefix: str) -> Iterator[Path]:
    """A new folder for the length of a `with`."""
    made = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
    try:
        yield made
    finally:
        with contextlib.suppress(OSError):  # such as a file system that has become read-only
            remove(made)


def remove(folder: Path) -> None:
    """Removes a folder of ours that nobody uses any more, however deep it is and whatever modes it has.

    Raises:
        OSError: something cannot be removed.
    """
    here = os.open(folder, FOLDER)
    inner = _emptied(here)
    above: list[tuple[str, list[str]]] = []  # on the way down: a name, and what is left to do beside it
    try:
        while inner or above:
            if inner:
                name = inner.pop()
                above.append((name, inner))
                here = _instead_of(here, name)
                inner = _emptied(here)
            else:
                here = _instead_of(here, "..")
                name, inner = above.pop()
                os.rmdir(name, dir_fd=here)
    finally:
        os.close(here)
    folder.rmdir()


def _emptied(folder: int) -> list[str]:
    """Removes the files of a folder; the names of the folders in it, which can be opened then."""
    inner = []
    for name in os.listdir(folder):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chmod(name, 0o700, dir_fd=folder)
            inner.append(name)
        else:
            os.unlink(name, dir_fd=folder)
    return inner


def _instead_of(here: int, name: str) -> int:
    """Opens a folder within `here`, which is closed."""
    try:
        return os.open(name, FOLDER, dir_fd=here)
    finally:
        os.close(here)
