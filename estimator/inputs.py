"""What an estimate depends on: files that programs of a dry run read or missed, as they are outside of it.

What a job writes itself, and then reads, follows from the rest: it is not there outside, and left out. Of a
file that it changes, the state before counts. Lists of paths are written in the sandbox, and not trusted.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from estimator.trace import InputFile

NOTES = "opened"  # the file in which programs note what they open, see fake_cuda/opened.cpp
LIMIT = 2000
ABSENT_LIMIT = 300
MOST_NOTED = 4 * 1024**2  # bytes
HASHED_FILE, HASHED_TOTAL = 1024**2, 16 * 1024**2  # bytes: code and configuration, not data
LONGEST = 4096  # characters of a path
CHANGING = -1  # a modification time that no file has
OURS = f"{Path(__file__).resolve().parent}/"


@dataclass(frozen=True)
class Noted:
    """Paths that programs read, and that they looked for in vain."""

    read: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


def noted(folder: Path, *without: Path) -> Noted:
    """What was noted in `folder`, but for what lies in one of the folders `without`."""
    try:
        descriptor = os.open(folder / NOTES, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return Noted()
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return Noted()
        paths = [os.fsdecode(path) for path in file.read(MOST_NOTED).split(b"\0")[:-1]]
    left_out = (OURS, *(f"{place}/" for place in without))

    def kept(some: Iterable[str]) -> tuple[str, ...]:
        found = dict.fromkeys(map(os.path.normpath, some))
        return tuple(path for path in found if not path.startswith(left_out) and not path.endswith(".pyc"))

    return Noted(
        kept(path for path in paths if not path.startswith("-")),
        kept(path[1:] for path in paths if path.startswith("-")),
    )


def of_paths(paths: Iterable[str], since_ns: int) -> tuple[InputFile, ...]:
    """The regular files among `paths` (bytes, Unix time in ns, SHA-256 of small ones).

    One that somebody changed after `since_ns`, while it was perhaps read, is never found unchanged later.
    """
    return tuple(_files(dict.fromkeys(paths), since_ns))


def of_absent(paths: Iterable[str], nearest: Path) -> tuple[InputFile, ...]:
    """Those of `paths` that are not there outside either, the ones below `nearest` first."""
    near_first = sorted(dict.fromkeys(paths), key=lambda path: not path.startswith(f"{nearest}/"))
    found = (InputFile(path=path, size=0, mtime_ns=None) for path in near_first if len(path) <= LONGEST)
    return tuple(itertools.islice(filter(is_same, found), ABSENT_LIMIT))


class File(Protocol):
    """A file as it was: see `InputFile`."""

    @property
    def path(self) -> str:
        """Where it lies."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def mtime_ns(self) -> int | None:
        """When it was changed (Unix time, ns); None: there was no such file."""

    @property
    def sha256(self) -> str | None:
        """Of its content, if that was noted."""


def is_same(noted: File) -> bool:
    """Whether a file is as it was. One that was only touched (another `git checkout`) is, by its content."""
    try:
        status = os.stat(noted.path)  # noqa: PTH116 - the quickest way, in a hot path
        if noted.mtime_ns is None or status.st_size != noted.size:
            return False
        return status.st_mtime_ns == noted.mtime_ns or (
            noted.sha256 is not None and _sha256(noted.path) == noted.sha256
        )
    except (FileNotFoundError, NotADirectoryError):
        return noted.mtime_ns is None
    except (OSError, ValueError):
        return False


def is_of_package(file: InputFile) -> bool:
    """Whether it was installed, and is not the user's own work."""
    return "/site-packages/" in file.path or "/dist-packages/" in file.path


def _files(paths: Iterable[str], since_ns: int) -> Iterator[InputFile]:
    left = HASHED_TOTAL
    count = 0
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - as `known.py` looks at it again
        except (OSError, ValueError):
            continue
        if not stat.S_ISREG(status.st_mode) or len(path) > LONGEST:
            continue
        count += 1
        if count > LIMIT:
            return
        digest, changed = None, status.st_mtime_ns
        if changed >= since_ns:
            changed = CHANGING
        elif status.st_size <= min(left, HASHED_FILE):
            digest = _sha256(path)
            left -= status.st_size
        yield InputFile(path=path, size=status.st_size, mtime_ns=changed, sha256=digest)


def _sha256(path: str) -> str | None:
    """Of a regular file that is not too large; nothing else is read, and no pipe waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > HASHED_FILE:
                return None
            return hashlib.sha256(file.read(HASHED_FILE)).hexdigest()
    except OSError:
        return None


def name_jobs(files: Iterable[InputFile]) -> bool:
    """Whether any of the user's own files asks for the job's name, after which it may choose its work."""
    for file in files:
        if file.mtime_ns is None or is_of_package(file) or file.size > HASHED_FILE:
            continue
        try:
            if b"SLURM_JOB_NAME" in Path(file.path).read_bytes()[:HASHED_FILE]:
                return True
        except OSError:
            return True
    return False
