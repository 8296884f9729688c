"""The margins of gpumemd: learned in the background from the history, read from memory for a decision."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from estimator.catalog import GPU, normalised
from history.calibration import Calibration, Observation, Prior
from history.outcomes import Outcome, observation, too_small
from history.store import Store, StoreError
from settings import MIB, Estimate

log = logging.getLogger("gpumemd")

_MOST_RUNS = 10_000
_PAUSE_S = 5.0
_PAUSE_PER_COST = 100
"""Learning keeps gpumemd busy for at most a hundredth of the time."""


class Margins(threading.Thread):
    """Learns anew when it is told that there are new measurements. `current` is what was learned last."""

    def __init__(self, store: Store, gpus: Mapping[str, GPU], settings: Estimate) -> None:
        super().__init__(name="margins", daemon=True)
        self._store = store
        self._gpus = tuple({gpu.key: gpu for gpu in gpus.values()}.values())
        self._settings = settings
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._learned = Calibration(settings.risk, prior(settings))

    def current(self) -> Calibration:
        """The margins as of now; never waits."""
        return self._learned

    def news(self) -> None:
        """There are new measurements; returns at once."""
        self._news.set()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        self._news.set()

    def run(self) -> None:
        """The thread's work."""
        while not self._stopping.is_set():
            self._news.wait()
            self._news.clear()
            began = time.monotonic()
            self.learn()
            self._stopping.wait(max(_PAUSE_S, _PAUSE_PER_COST * (time.monotonic() - began)))

    def learn(self) -> None:
        """Reads the history once; if it cannot be read, what was learned stays."""
        try:
            outcomes = self._store.outcomes(_MOST_RUNS)
        except StoreError as error:
            log.error("margins stay as they are: %s", error)
            return
        known = observations(outcomes, self._gpus) if self._settings.margin_from_history else ()
        self._learned = Calibration.of(known, self._settings.risk, prior(self._settings), too_small(outcomes))


def prior(settings: Estimate) -> Prior:
    """The margin of the settings."""
    return Prior(settings.margin, settings.margin_bounded, settings.margin_mib * MIB)


def observations(outcomes: Sequence[Outcome], gpus: Sequence[GPU]) -> Iterator[Observation]:
    """What runs on the GPU model that they were estimated for say."""
    for outcome in outcomes:
        gpu = next((gpu for gpu in gpus if _is(gpu, outcome.estimated_gpu)), None)
        if gpu is not None and _is(gpu, outcome.measured_gpu):
            made = observation(outcome, gpu.key)
            if made is not None:
                yield made


def _is(gpu: GPU, name: str | None) -> bool:
    return name is not None and gpu.is_called(normalised(name))
