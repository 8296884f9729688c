"""All writing to the history database, by one thread, so that no request ever waits for a disk."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import InterfaceError, OperationalError

from history.models import Decision
from history.store import Store, StoreError

log = logging.getLogger("gpumemd")

_MOST_WAITING = 50_000
_GATHER_S = 0.1
_RETRY_S = 1.0

Write = Callable[[Store], Any]


@dataclass(frozen=True)
class _Item:
    """A write, or a new decision; neighbours of the latter kind share one transaction."""

    write: Write | None = None
    decision: Callable[[], Decision] | None = None
    future: Future[Any] = field(default_factory=Future)


class Writer(threading.Thread):
    """Carries out writes in the order they were put; while the database is away they wait."""

    def __init__(self, store: Store) -> None:
        super().__init__(name="writer", daemon=True)
        self._store = store
        self._queue: queue.Queue[_Item | None] = queue.Queue(_MOST_WAITING)
        self._stopping = threading.Event()

    def put(self, write: Write) -> Future[Any]:
        """Queues a write; the future has its result, or its error."""
        return self._put(_Item(write=write))

    def put_decision(self, decision: Callable[[], Decision]) -> Future[Any]:
        """Queues a new decision; it is made by `decision` in the writer's thread."""
        return self._put(_Item(decision=decision))

    def stop(self, timeout_s: float) -> None:
        """Ends the thread once everything that was put is written, or cannot be."""
        self._stopping.set()
        self._queue.put(None)
        self.join(timeout_s)

    def run(self) -> None:
        """The thread's work."""
        ended = False
        while not ended:
            gathered = [self._queue.get()]
            time.sleep(_GATHER_S)  # decisions that follow closely cost one transaction
            while not self._queue.empty():
                gathered.append(self._queue.get())
            ended = None in gathered
            for batch in _batches([item for item in gathered if item is not None]):
                self._carry_out(batch)

    def _put(self, item: _Item) -> Future[Any]:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            log.error("the history database is too far behind: a record is lost")
            item.future.set_exception(TimeoutError("too many writes are waiting"))
        return item.future

    def _carry_out(self, batch: list[_Item]) -> None:
        said = False
        while True:
            try:
                result = self._write(batch)
            except StoreError as error:
                if not isinstance(error.__cause__, OperationalError | InterfaceError):
                    self._give_up(batch, error)
                    return
                if not said:  # away, locked or full
                    log.error("the history database cannot be written, trying again: %s", error)
                    said = True
                if self._stopping.wait(_RETRY_S):
                    self._give_up(batch, error)
                    return
            except Exception as error:  # a record is at fault, the others need not be
                self._give_up(batch, error)
                return
            else:
                for item in batch:
                    item.future.set_result(result)
                return

    def _write(self, batch: list[_Item]) -> Any:
        if (write := batch[0].write) is not None:
            return write(self._store)
        self._store.add_decision(*(item.decision() for item in batch if item.decision is not None))
        return None

    def _give_up(self, batch: list[_Item], error: Exception) -> None:
        if len(batch) > 1 and not self._stopping.is_set():
            for item in batch:
                self._carry_out([item])
            return
        log.error("a record of the history is lost: %s", error, exc_info=error)
        for item in batch:
            item.future.set_exception(error)


def _batches(items: list[_Item]) -> Iterator[list[_Item]]:
    """Neighbouring decisions together, every other write by itself."""
    batch: list[_Item] = []
    for item in items:
        if batch and (item.decision is None or batch[-1].decision is None):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch
