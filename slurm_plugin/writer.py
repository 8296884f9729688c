"""All writing to the history database, by one thread, so that no request ever waits for a disk."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from sqlalchemy.exc import InterfaceError, OperationalError

from history.store import Store, StoreError

log = logging.getLogger("gpumemd")

_MOST_WAITING = 50_000
_RETRY_S = 1.0

Write = Callable[[Store], Any]


class Writer(threading.Thread):
    """Carries out writes in the order they were put; while the database is away they wait."""

    def __init__(self, store: Store) -> None:
        super().__init__(name="writer", daemon=True)
        self._store = store
        self._queue: queue.Queue[tuple[Write, Future[Any]] | None] = queue.Queue(_MOST_WAITING)
        self._stopping = threading.Event()

    def put(self, write: Write) -> Future[Any]:
        """Queues a write; the future has its result, or its error."""
        future: Future[Any] = Future()
        try:
            self._queue.put_nowait((write, future))
        except queue.Full:
            log.error("the history database is too far behind: a record is lost")
            future.set_exception(TimeoutError("too many writes are waiting"))
        return future

    def stop(self, timeout_s: float) -> None:
        """Ends the thread once everything that was put is written, or cannot be."""
        self._stopping.set()
        self._queue.put(None)
        self.join(timeout_s)

    def run(self) -> None:
        """The thread's work."""
        while (item := self._queue.get()) is not None:
            write, future = item
            self._carry_out(write, future)

    def _carry_out(self, write: Write, future: Future[Any]) -> None:
        said = False
        while True:
            try:
                future.set_result(write(self._store))
                return
            except StoreError as error:
                if not isinstance(error.__cause__, OperationalError | InterfaceError):
                    log.exception("a record of the history is lost")
                    future.set_exception(error)
                    return
                if not said:  # away, locked or full
                    log.error("the history database cannot be written, trying again: %s", error)
                    said = True
                if self._stopping.wait(_RETRY_S):
                    future.set_exception(error)
                    return
            except Exception as error:  # this record is at fault, the next ones need not be
                log.exception("a record of the history is lost")
                future.set_exception(error)
                return
