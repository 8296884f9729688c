"""The least memory that a job can live in: the smallest capacity in which its history still runs.

A larger capacity is not always enough where a smaller one is: when memory runs out, cached segments are
freed, and what is cut and cached afterwards differs from then on. So the answer of a bisection could be a
capacity above which the job fails again, and one below which it runs might be missed.

What is known for certain bounds the search. Below the most bytes that are in use at one time nothing runs;
with what is reserved where there is no limit, and with more, the job runs without a retry. The search
bisects between these two, in pages of 2 MiB, for a capacity in which the job runs while it fails in one page
less. Then it looks at some capacities in between for the two surprises: a smaller one in which the job runs
after all, and a larger one in which it fails. A failure above the answer moves it up, above that failure: it
is safe as far as was looked. Where certainty is wanted, `probes=None` looks at every page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from estimator.allocator import DEFAULT_CONFIG, UNLIMITED, AllocatorConfig, History, Replay, replay
from estimator.allocator.device import PAGE
from estimator.held import HeldSegment

PROBES = 4  # capacities that are looked at beyond the bisection, on either side


@dataclass(frozen=True, slots=True)
class LeastCapacity:
    """What a job needs; bytes, multiples of 2 MiB.

    `capacity`: it runs with this and, as far as was looked, with more; `retries`: how often cached memory is
    freed there to go on. `least`: the smallest capacity in which a replay succeeded, below `capacity` only
    where more memory was seen to be not enough. `ceiling`: what it takes if it may. `replays`: how many the
    search took.
    """

    capacity: int
    retries: int
    least: int
    ceiling: int
    replays: int


def least_capacity(
    history: History,
    config: AllocatorConfig = DEFAULT_CONFIG,
    initial: Iterable[HeldSegment] = (),
    unlimited: Replay | None = None,
    resolution: int = PAGE,
    probes: int | None = PROBES,
) -> LeastCapacity:
    """The smallest capacity in which `history` runs under `config`, retries allowed.

    `unlimited` is the replay without limit, if it is known. In less than `capacity` by `resolution` bytes (at
    least 2 MiB) the history fails. `config.memory_fraction` is left out of account: it is a limit of its own.

    Raises:
        ReplayError: the history contradicts itself.
    """
    config = dataclasses.replace(config, memory_fraction=None)
    held = tuple(initial)

    def retries_at(capacity: int) -> int | None:
        # addresses as on a large device: how many there are must not depend on the capacity
        done = replay(history, capacity, config, held, UNLIMITED)
        return done.retries if done.oom is None else None

    free = unlimited or replay(history, UNLIMITED, config, held)
    return _Search(retries_at, free, max(resolution // PAGE, 1)).run(probes)


class _Search:
    """Over capacities in pages."""

    def __init__(self, retries_at: Callable[[int], int | None], free: Replay, step: int) -> None:
        self._retries_at = retries_at
        self._step = step
        self.floor = -(-sum(block.requested for block in free.live) // PAGE)
        self.ceiling = -(-free.reserved_peak // PAGE)
        self.known: dict[int, int | None] = {self.ceiling: 0}  # retries; None: it fails
        self.replays = 0

    def runs(self, pages: int) -> bool:
        if pages not in self.known:
            self.known[pages] = self._retries_at(pages * PAGE)
            self.replays += 1
        return self.known[pages] is not None

    def run(self, probes: int | None) -> LeastCapacity:
        answer = self._bisect(self.floor, self.ceiling)
        for pages in self._between(answer + 1, self.ceiling, probes):
            if pages > answer and not self.runs(pages):
                answer = self._bisect(pages + 1, self.ceiling)
        for pages in self._between(self.floor, answer - 1, probes):
            if self.runs(pages):
                self._bisect(self.floor, pages)
        running = {pages: retries for pages, retries in self.known.items() if retries is not None}
        last_failure = max((pages for pages in self.known if pages not in running), default=-1)
        safe = min(pages for pages in running if pages > last_failure)
        return LeastCapacity(
            safe * PAGE, running[safe], min(running) * PAGE, self.ceiling * PAGE, self.replays
        )

    def _bisect(self, low: int, high: int) -> int:
        """Pages in [`low`, `high`] with which it runs, and with `step` less it fails or `low` is reached."""
        while high - low >= self._step:
            middle = (low + high) // 2
            if self.runs(middle):
                high = middle
            else:
                low = middle + 1
        return high

    @staticmethod
    def _between(low: int, high: int, count: int | None) -> list[int]:
        """`count` numbers of pages in [`low`, `high`], each in the middle of a part; None: all."""
        width = high - low + 1
        if count is None or width <= count:
            return list(range(low, high + 1))
        return [low + (2 * part + 1) * width // (2 * count) for part in range(count)]
