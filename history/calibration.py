"""How much more than its estimate a job may need: a margin learned from what earlier jobs needed. Pure.

The bound (estimate + margin) is one-sided: at most a share `risk` of jobs may need more. What is learned
from are *scores*: by how much a job needed more than was estimated, in units that grow with the estimate
(`unit`), since a part of the error is constant (CUDA context, loaded kernels) and a part grows with the job.
Jobs of one GPU model, one status (exact, bounded) and one kind form a group: *new* jobs are scored against
their estimate; those whose *work* has run before (the same fingerprint), or else a *script* of that name and
user, against the largest score of its last runs. So a script's own history narrows its margin exactly as far
as such histories have been worth so far.

Within a group the margin is the split-conformal quantile of the last scores (Vovk et al. 2005; Lei et al.
2018), at a level that follows the mistakes made (adaptive conformal inference, Gibbs & Candes 2021): each job
above its bound lowers the level by GAIN * risk * (1 - risk), each other one raises it by GAIN * risk * risk.
However the mix of jobs drifts, the share of jobs above their bound comes back to the risk. With fewer scores
than a quantile of that level needs, the margin is the prior one, or the largest score if that is more.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

MIB = 1024**2

UNIT_BYTES = 256 * MIB
UNIT_FRACTION = 0.03
"""A score of 1: UNIT_BYTES and this part of the estimate. Only their ratio matters."""

WINDOW = 1000
"""Scores of a group that count: older ones are forgotten."""

RUNS = 8
"""Runs of a script that count."""

GAIN = 0.5
"""Of the level by mistakes, in units of the risk."""

MOST_LEVEL = 3.0
"""The level is at most so many times the risk: a quiet time buys no more mistakes than that afterwards."""

LEAST_LEVEL = -10.0
"""The level is at least so many times the gain."""

STEP = 0.1
"""Of the score beyond the largest one seen, for each mistake that the level went down below the last rank."""

_MOST_SCRIPTS = 20_000

Status = Literal["exact", "bounded"]
Kind = Literal["new", "script", "work"]


@dataclass(frozen=True, slots=True)
class Job:
    """A job with an estimate: what its margin depends on.

    `gpu`: name of the model; `peak_bytes`: as estimated. `fingerprint` is the same for the same work,
    `script` for the same script of the same user.
    """

    gpu: str
    status: Status
    peak_bytes: int
    fingerprint: str | None = None
    script: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """A job that has run, and the most GPU memory it held (bytes).

    `is_at_least`: it may have needed more (it failed, was ended, ran out of memory or was not watched well).
    `promised_bytes`: the bound that it was given, None if none was. `escaped`: it held more than the limit
    that was set for it.
    """

    job: Job
    peak_bytes: int
    is_at_least: bool = False
    promised_bytes: int | None = None
    escaped: bool = False


@dataclass(frozen=True, slots=True)
class Prior:
    """The margin where nothing is known: fractions of the estimate by status, and the least in bytes."""

    exact: float
    bounded: float
    least_bytes: int

    def margin_bytes(self, job: Job) -> int:
        """For one job."""
        fraction = self.exact if job.status == "exact" else self.bounded
        return max(int(job.peak_bytes * fraction), self.least_bytes)


@dataclass(frozen=True, slots=True)
class Bound:
    """What a job will not need more than, in bytes; `learned`: from history, else from the prior."""

    bytes: int
    learned: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """What one group of jobs has taught so far.

    `scores`: how many count; `score`: the margin in units (see `unit`), on top of the own history of a job
    that has one; None: still the prior. `judged` jobs ended when the group had a margin of its own, `misses`
    of them needed more than their bound; `promised` jobs were given a bound of any kind, `broken` of them
    needed more.
    """

    gpu: str
    status: Status
    kind: Kind
    scores: int
    score: float | None
    judged: int
    misses: int
    promised: int
    broken: int


def unit(estimated_bytes: int) -> float:
    """The size of an error that counts as 1, in bytes."""
    return UNIT_BYTES + UNIT_FRACTION * estimated_bytes


def least_scores(risk: float) -> int:
    """How many scores a quantile of this level needs: with fewer, even their largest promises too little."""
    return math.ceil((1 - risk) / risk - 1e-9)


class Calibration:
    """Margins by what was learned.

    `bound` may be called from several threads once nothing is learned any more.
    """

    def __init__(
        self, risk: float, prior: Prior, window: int = WINDOW, too_small: frozenset[str] = frozenset()
    ) -> None:
        self.risk = risk
        self._prior = prior
        self._window = window
        self._groups: dict[tuple[str, Status, Kind], _Group] = {}
        self._runs: OrderedDict[tuple[Kind, str, str], deque[float]] = OrderedDict()
        self._escaped: set[str] = set()
        self.too_small = too_small
        """Fingerprints of work for which no bound is known to hold, see `history.outcomes.too_small`."""

    @classmethod
    def of(
        cls,
        observations: Iterable[Observation],
        risk: float,
        prior: Prior,
        too_small: frozenset[str] = frozenset(),
    ) -> Calibration:
        """What these, in the order in which they ended, teach."""
        made = cls(risk, prior, too_small=too_small)
        for observation in observations:
            made.learn(observation)
        return made

    def bound(self, job: Job) -> Bound:
        """What the job will not need more than, but for the risk.

        Never below the estimate of a new job, nor below what the last runs of another one needed (adjusted to
        its estimate).
        """
        kind, own = self._history(job)
        group = self._groups.get((job.gpu, job.status, kind))
        score = group.margin() if group else None
        size = unit(job.peak_bytes)
        if score is not None:
            return Bound(job.peak_bytes + math.ceil((own + max(score, 0.0)) * size), True)
        largest = own + (group.largest() if group else 0.0)
        margin = max(self._prior.margin_bytes(job), math.ceil(max(largest, own, 0.0) * size))
        return Bound(job.peak_bytes + margin, False)

    def has_escaped(self, fingerprint: str) -> bool:
        """Whether the same work held more than a limit that was set for it: no limit reaches it."""
        return fingerprint in self._escaped

    def learn(self, observation: Observation) -> None:
        """Takes note of a job that has run; they are told in the order in which they ended.

        It is judged by the bound that it was given, else by that of now: so jobs that were decided on before
        others had ended count with what was known then. What a job needed at least says something only where
        that is more.
        """
        job = observation.job
        if observation.escaped and job.fingerprint:
            self._escaped.add(job.fingerprint)
        bound = self.bound(job)
        promised = observation.promised_bytes
        missed = observation.peak_bytes > (bound.bytes if promised is None else promised)
        if observation.is_at_least and not missed:
            return
        kind, own = self._history(job)
        group = self._groups.setdefault((job.gpu, job.status, kind), _Group(self.risk, self._window))
        if promised is not None:
            group.promised += 1
            group.broken += missed
        if bound.learned:
            group.judge(missed)
        if observation.is_at_least and observation.peak_bytes <= bound.bytes:
            return
        score = (observation.peak_bytes - job.peak_bytes) / unit(job.peak_bytes)
        group.add(score - own)
        for name in _names(job):
            runs = self._runs.setdefault(name, deque(maxlen=RUNS))
            runs.append(score)
            self._runs.move_to_end(name)
        while len(self._runs) > _MOST_SCRIPTS:
            self._runs.popitem(last=False)

    def summaries(self) -> list[Summary]:
        """What is known of each group, by name."""
        return [
            Summary(
                *key, len(group), group.margin(), group.judged, group.misses, group.promised, group.broken
            )
            for key, group in sorted(self._groups.items())
        ]

    def _history(self, job: Job) -> tuple[Kind, float]:
        """What of the job has run before, and the largest of its last scores."""
        for name in _names(job):
            if runs := self._runs.get(name):
                return name[0], max(runs)
        return "new", 0.0


class _Group:
    """The last scores of jobs that are alike, and how its bounds did."""

    def __init__(self, risk: float, window: int) -> None:
        self._risk = risk
        self._gain = GAIN * risk
        self._level = risk
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []
        self._window = window
        self.judged = self.misses = self.promised = self.broken = 0

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, score: float) -> None:
        """A further score; the oldest one is forgotten."""
        if len(self._recent) == self._window:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        self._recent.append(score)
        insort(self._ordered, score)

    def judge(self, missed: bool) -> None:
        """Takes note of whether a job needed more than its bound."""
        self.judged += 1
        self.misses += missed
        level = self._level + self._gain * (self._risk - missed)
        self._level = min(max(level, LEAST_LEVEL * self._gain), MOST_LEVEL * self._risk)

    def largest(self) -> float:
        """The largest score; 0 if there is none."""
        return self._ordered[-1] if self._ordered else 0.0

    def margin(self) -> float | None:
        """The score that a job of the group will not exceed, but for the risk; None: there are too few."""
        if len(self) < least_scores(self._risk):
            return None
        return quantile(self._ordered, self._level, STEP / self._gain)


def quantile(ordered: Sequence[float], level: float, slope: float = 0.0) -> float:
    """The conformal quantile of ascending scores: at most a share `level` of such scores lies above.

    Where that would be above all of them, the largest, and `slope` for each unit that the level is too low.
    """
    count = len(ordered)
    rank = math.ceil((count + 1) * (1 - level) - 1e-9)
    if rank <= count:
        return ordered[max(rank, 1) - 1]
    return ordered[-1] + slope * max(1 / (count + 1) - level, 0.0)


def _names(job: Job) -> list[tuple[Kind, str, str]]:
    """By what the runs of a job are known, the closest first."""
    names: list[tuple[Kind, str | None]] = [("work", job.fingerprint), ("script", job.script)]
    return [(kind, job.gpu, name) for kind, name in names if name]
