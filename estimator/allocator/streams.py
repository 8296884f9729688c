"""Blocks that are used on other streams: freed memory waits for events (`record_stream`)."""

from __future__ import annotations

from collections import deque

from estimator.allocator.blocks import Block
from estimator.allocator.caching import Allocator


class StreamUses:
    """An allocator together with the streams of its device, whose work may be undone yet.

    A history tells when frees were completed, so that a replay needs none of this.
    """

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self._uses: dict[int, set[int]] = {}  # streams, by handle
        self._captured_uses: dict[int, set[int]] = {}  # those that were recorded during a capture
        self._events: dict[int, deque[tuple[int, int]]] = {}  # (release to wait for, handle), by stream
        self._outstanding: dict[int, int] = {}  # events, by handle
        self._deferred: list[int] = []  # freed during a capture, when events must not be asked
        self._held: set[int] = set()
        self._releases: dict[int, int] = {}

    def hold(self, stream: int) -> None:
        """From now on work on `stream` stays undone ..."""
        self._held.add(stream)

    def let_go(self, stream: int) -> None:
        """... until now."""
        if stream in self._held:
            self._held.remove(stream)
            self._releases[stream] = self._releases.get(stream, 0) + 1

    def malloc(self, handle: int, size: int, stream: int = 0) -> Block:
        """Allocates; what other streams have done with meanwhile can be used for it.

        Raises:
            OutOfMemoryError: as `Allocator.malloc`.
        """
        if not self.allocator.is_capturing:
            self._process_events()
        return self.allocator.malloc(handle, size, stream)

    def record_stream(self, handle: int, stream: int) -> None:
        """A live allocation is used on `stream` (`Tensor.record_stream`)."""
        if self.allocator.live[handle].pool.stream == stream:
            return
        self._uses.setdefault(handle, set()).add(stream)
        if self.allocator.is_capturing:
            self._captured_uses.setdefault(handle, set()).add(stream)

    def free(self, handle: int) -> None:
        """Frees an allocation; it is complete when all streams that used it are done."""
        self.allocator.free(handle)
        if not self._uses.get(handle):
            self.allocator.complete_free(handle)
        elif self.allocator.is_capturing:
            self._deferred.append(handle)
        else:
            self._insert_events(handle, self._uses.pop(handle))

    def empty_cache(self) -> None:
        """`torch.cuda.empty_cache`, which waits for all streams."""
        self.allocator.empty_cache()

    def _insert_events(self, handle: int, streams: set[int]) -> None:
        if not streams:
            self.allocator.complete_free(handle)
            return
        self._outstanding[handle] = len(streams)
        for stream in streams:
            release = self._releases.get(stream, 0) + (stream in self._held)
            self._events.setdefault(stream, deque()).append((release, handle))

    def _process_events(self) -> None:
        for handle in self._deferred:
            self._insert_events(handle, self._uses.pop(handle) - self._captured_uses.pop(handle, set()))
        self._deferred.clear()
        for stream, events in self._events.items():
            while events and events[0][0] <= self._releases.get(stream, 0):
                handle = events.popleft()[1]
                self._outstanding[handle] -= 1
                if self._outstanding[handle] == 0:
                    del self._outstanding[handle]
                    self.allocator.complete_free(handle)
