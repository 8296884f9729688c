"""What the service remembers of earlier traces, and whether it still holds."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_plugin.access import NoAccess, as_user
from slurm_plugin.policy import Known
from slurm_plugin.wire import Input

FAILURE_LASTS_S = 3600.0
_MOST = 20_000
_MOST_READ = 4 * 1024**2  # bytes of one file


@dataclass(frozen=True)
class _Entry:
    known: Known
    until: float


class KnownResults:
    """Results by fingerprint, the least recently used forgotten first; safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, fingerprint: str) -> Known | None:
        """What is known; a failure only for an hour, as its cause may have been mended."""
        with self._lock:
            entry = self._entries.get(fingerprint)
            if entry is None:
                return None
            if self._clock() >= entry.until:
                del self._entries[fingerprint]
                return None
            self._entries.move_to_end(fingerprint)
            return entry.known

    def put(self, fingerprint: str, known: Known) -> None:
        """Remembers a result in place of an earlier one."""
        lasts = FAILURE_LASTS_S if known.estimate is None else float("inf")
        with self._lock:
            self._entries[fingerprint] = _Entry(known, self._clock() + lasts)
            self._entries.move_to_end(fingerprint)
            while len(self._entries) > _MOST:
                self._entries.popitem(last=False)


def unchanged(inputs: Sequence[Input], uid: int) -> bool:
    """Whether every file is as it was when it was traced, as far as user `uid` can see it.

    A file that was only touched (another `git checkout` of the same) counts as unchanged if its content was
    noted and is the same. Touches the file system: may block.
    """
    try:
        with as_user(uid):
            return all(_is_same(known) for known in inputs)
    except NoAccess:
        return False


def _is_same(known: Input) -> bool:
    try:
        status = os.stat(known.path)  # noqa: PTH116 - the quickest way, in a hot path
        if status.st_size != known.size:
            return False
        return status.st_mtime_ns == known.mtime_ns or (
            known.sha256 is not None and _sha256(known.path) == known.sha256
        )
    except (OSError, ValueError):
        return False


def _sha256(path: str) -> str | None:
    """Of a regular file that is not too large; nothing else is read, and no pipe waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_READ:
            return None
        return hashlib.sha256(file.read(_MOST_READ)).hexdigest()
