"""What the service remembers of earlier traces, and whether it still holds."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from estimator.inputs import is_same
from slurm_plugin.access import NoAccess, as_user
from slurm_plugin.policy import Known
from slurm_plugin.wire import Input

FAILURE_LASTS_S = 3600.0
_MOST = 20_000


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

    Touches the file system: may block.
    """
    try:
        with as_user(uid):
            return all(is_same(noted) for noted in inputs)
    except NoAccess:
        return False
