"""Measurements on their way to the service: one file each, until the service has it.

A file is written whole (and synced) or not at all, is deleted only when the service has accepted its id, and
may be sent twice, since the service counts an id once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prolog import files

if TYPE_CHECKING:
    from history.wire import Measurement

MAX_FILES = 20_000
"""Per folder; beyond that the folder counts as full."""

MAX_FILE_BYTES = 64 * 1024
MAX_SET_ASIDE = 1000
BATCH = 64
_LEFTOVER_S = 3600.0


class SpoolProblem(Exception):
    """No folder took the measurement."""


class Undelivered(Exception):
    """The service did not take the measurements now; they may be sent again."""


class Malformed(Exception):
    """The service understood the request and will never take these measurements as they are."""


Deliver = Callable[[Sequence["Measurement"]], set[str]]
"""Sends measurements, returns the ids that the service has; raises Undelivered or Malformed."""


@dataclass
class Flushed:
    """What a flush did; `reason`: why files were left."""

    sent: int = 0
    left: int = 0
    set_aside: int = 0
    reason: str | None = None


def waiting(folder: Path) -> int:
    """How many measurements wait in `folder`."""
    return len(_names(folder))


class Spool:
    """The spool folder, and the ones used while it cannot be written, best first."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = tuple(folders)

    def store(self, measurement: Measurement) -> Path:
        """Keeps a measurement safe; returns its file.

        Raises:
            SpoolProblem: no folder takes it (full, read-only, not there); the text names them all.
        """
        data = measurement.model_dump_json().encode()
        problems = []
        for folder in self._folders:
            try:
                files.make_private(folder)
                if len(_names(folder)) >= MAX_FILES:
                    raise OSError(f"{folder}: holds {MAX_FILES} measurements already")
                path = folder / f"{measurement.id}.json"
                files.write(path, data, durable=True)
            except OSError as error:
                problems.append(str(error))
            else:
                return path
        raise SpoolProblem("; ".join(problems))

    def flush(self, deliver: Deliver, patience_s: float = 60.0) -> Flushed:
        """Sends what waits in all folders, oldest first, and deletes what was accepted.

        Processes that flush at once take turns. After `patience_s` no other request is begun.
        """
        until = time.monotonic() + patience_s
        result = Flushed()
        for folder in self._folders:
            if waiting(folder):
                with _locked(folder, until) as locked:
                    if locked:
                        _flush_folder(folder, deliver, until, result)
                    else:
                        result.left += waiting(folder)
                        result.reason = f"{folder}: another process is sending"
        return result


def _flush_folder(folder: Path, deliver: Deliver, until: float, result: Flushed) -> None:
    _remove_leftovers(folder)
    paths = sorted((folder / name for name in _names(folder)), key=_modified)
    result.left += len(paths)
    for start in range(0, len(paths), BATCH):
        if time.monotonic() >= until:
            result.reason = result.reason or "not enough time"
            return
        batch = _read_batch(paths[start : start + BATCH], result)
        try:
            _send(batch, deliver, result)
        except Undelivered as problem:
            result.reason = str(problem)
            return


def _read_batch(paths: Sequence[Path], result: Flushed) -> list[tuple[Path, Measurement]]:
    from history.wire import Measurement

    batch = []
    for path in paths:
        try:
            data = files.read(path, MAX_FILE_BYTES)
        except FileNotFoundError:
            result.left -= 1  # another flusher was quicker
        except OSError as error:
            result.reason = str(error)
        else:
            try:
                batch.append((path, Measurement.model_validate_json(data)))
            except ValueError:
                _set_aside(path, result)
    return batch


def _send(batch: Sequence[tuple[Path, Measurement]], deliver: Deliver, result: Flushed) -> None:
    """Sends a batch; one that the service finds malformed is sent one by one, so that one spoils no other."""
    if not batch:
        return
    try:
        accepted = deliver([measurement for _, measurement in batch])
    except Malformed:
        if len(batch) == 1:
            _set_aside(batch[0][0], result)
        else:
            for item in batch:
                _send([item], deliver, result)
        return
    for path, measurement in batch:
        if measurement.id in accepted:
            with contextlib.suppress(OSError):  # a read-only folder: it is sent again, and counted once
                path.unlink()
            result.sent += 1
            result.left -= 1
        else:
            result.reason = "the service did not accept every measurement"


def _set_aside(path: Path, result: Flushed) -> None:
    with contextlib.suppress(OSError):
        path.rename(path.with_suffix(".bad"))
        result.set_aside += 1
        result.left -= 1
        for old in sorted(path.parent.glob("*.bad"), key=_modified)[:-MAX_SET_ASIDE]:
            old.unlink()


def _remove_leftovers(folder: Path) -> None:
    """Half-written files of processes that were killed."""
    for path in folder.glob(".*.tmp"):
        if time.time() - _modified(path) > _LEFTOVER_S:
            with contextlib.suppress(OSError):
                path.unlink()


def _names(folder: Path) -> list[str]:
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
    return [name for name in names if name.endswith(".json") and not name.startswith(".")]


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


@contextlib.contextmanager
def _locked(folder: Path, until: float) -> Iterator[bool]:
    """Whether we alone may flush `folder`, waiting for others. Without locks: we may; twice does no harm."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _lock(descriptor, until)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.05)
        except OSError:  # this file system has no locks
            return True
        else:
            return True
