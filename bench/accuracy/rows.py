"""Each job with the truth and what every estimator said of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.accuracy import fit
from bench.accuracy.census import Census
from bench.accuracy.jobs import MIB, Job
from bench.accuracy.metrics import Answer, Metrics, measure
from bench.accuracy.ours import Raw
from bench.accuracy.peers import fake_tensors

OURS, WITH_MARGIN, BETTER = "gpumem", "gpumem with its margin", "gpumem, better of two readings"
MARGIN, MARGIN_BOUNDED, MARGIN_BYTES = 0.03, 0.12, 256 * MIB  # the defaults of etc/gpumem.toml
RISE = ("xmem",)  # truth is the rise of the reading above a first one, which holds the context already
FITTED = ("timm", "mlp")  # truth is the reading of a GPU that holds other things, too
USUAL = "float32"


@dataclass(frozen=True)
class Row:
    """`answers` in bytes by estimator, None where one failed; `outside` is what ours adds to the allocator.

    `held_out`: no constant was fitted on this row. `near` is the signed error of ours, as a part.
    """

    job: Job
    raw: Raw | None
    outside: int
    held_out: bool
    answers: dict[str, int | None] = field(default_factory=dict)

    def compared(self, estimator: str, card: int) -> Answer:
        """This estimator's answer beside the truth."""
        return Answer(self.job.truth_bytes, self.answers.get(estimator), card, self.job.capped)

    @property
    def error(self) -> float | None:
        """The signed error of our answer as a part of the truth; None where there is none."""
        said = self.answers.get(OURS)
        return None if said is None or self.job.capped else said / self.job.truth_bytes - 1


def outside_of(found: Iterable[tuple[Job, Sequence[Raw | None]]]) -> dict[str, int]:
    """Bytes beside the allocator by data set, where a constant decides them: 0, or one that is fitted."""
    points: dict[str, list[fit.Point]] = defaultdict(list)
    for job, raws in found:
        raw = raws[0] if raws else None
        if job.dataset in FITTED and not job.capped and raw and raw.reserved and raw.fits:
            points[job.dataset].append(fit.Point(job.model, job.truth_bytes, raw.reserved))
    constants = dict.fromkeys(RISE, 0)
    for dataset, known in points.items():
        if any(fit.is_fitted(point.model) for point in known):
            constants[dataset] = fit.beside_allocator(known)
    return constants


def row_of(job: Job, raws: Sequence[Raw | None], constants: Mapping[str, int]) -> Row:
    """Our own answers to one job, from the variants that it may have been."""
    raw = raws[0] if raws else None
    outside = constants.get(job.dataset, raw.outside if raw else 0)
    held_out = job.dataset not in FITTED or not fit.is_fitted(job.model)
    row = Row(job, raw, outside, held_out)
    peaks = [None if one is None or one.reserved is None else one.reserved + outside for one in raws]
    row.answers[OURS] = peaks[0] if peaks else None
    row.answers[WITH_MARGIN] = with_margin(peaks[0], raw.status) if raw and peaks[0] is not None else None
    if job.dataset in RISE:
        known = [peak for peak in (peaks[:1] if job.capped else peaks) if peak is not None]
        row.answers[BETTER] = min(known, key=lambda peak: abs(peak - job.truth_bytes), default=None)
    return row


def with_margin(peak: int, status: str) -> int:
    """What is recommended for such a peak (bytes), before it is rounded up to shards."""
    return peak + max(int(peak * (MARGIN if status == "exact" else MARGIN_BOUNDED)), MARGIN_BYTES)


def add_peers(
    rows: Sequence[Row],
    census_of: Callable[[Job], Census | None],
    peers: Mapping[str, Callable[[Job, Census], int | None]],
) -> list[tuple[Job, Census]]:
    """Adds what others say: as published with the row, and by their rules. Returns what could be counted."""
    counted = []
    for row in rows:
        row.answers.update({**row.job.published, **fake_tensors.said(row.job)})
        census = census_of(row.job)
        if census is not None:
            counted.append((row.job, census))
        for name, peer in peers.items():
            row.answers[name] = None if census is None else peer(row.job, census)
    return counted


def metrics_of(rows: Sequence[Row], cards: Mapping[str, int]) -> dict[str, Metrics]:
    """The metrics of each estimator that has answers to these rows; `cards` has bytes by GPU."""
    names = dict.fromkeys(name for row in rows for name in row.answers)
    return {
        name: measure([row.compared(name, cards[row.job.gpu]) for row in rows if name in row.answers])
        for name in names
        if any(row.answers.get(name) is not None for row in rows)
    }
