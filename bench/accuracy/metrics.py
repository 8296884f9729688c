"""How good an estimator is, by its answers and the truth, as the literature counts it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

NEAR = 0.9  # of what a card offers: a run that ended there lacked memory


@dataclass(frozen=True)
class Answer:
    """What one estimator said of one job, beside the truth; all in bytes.

    `said` is None where it failed. `card` is what the GPU offers. `capped`: the run met the limit of the
    card, so that its truth is what it had until then.
    """

    truth: int
    said: int | None
    card: int
    capped: bool = False

    @property
    def error(self) -> float | None:
        """Signed, as a part of the truth; None where there is nothing to compare."""
        return None if self.said is None or self.capped else self.said / self.truth - 1


@dataclass(frozen=True)
class Metrics:
    """Of one estimator on one data set; parts, not per cent, and None where no row tells.

    `rows` have an answer or failed. Of them `capped` are judged by `told_full` alone, and those that ended
    far from the card's limit not at all, as it is not known why they ended. An error that is not known,
    because the estimator failed, counts as 100 % (of the truth), and such an answer as too low.

    - `median`, `mean` (MAPE) and `p95`: absolute relative errors
    - `bias`: the median of the signed errors
    - `too_low`: how many answers, used as a limit, would have ended the job
    - `conserved`: memory that a limit at the answer leaves to others, as a part of the card, on average. A
      limit that is enough leaves card - answer; one that is too low wastes what it gave: -answer. After the
      memory conservation potential of xMem (arXiv:2510.21048). Asking for the whole card is 0.
    - `told_full`: of the capped rows near the card's limit, how many it said would need more than that
    """

    rows: int
    failed: int
    capped: int
    median: float | None
    mean: float | None
    p95: float | None
    bias: float | None
    too_low: float | None
    conserved: float | None
    told_full: float | None


def measure(answers: Sequence[Answer]) -> Metrics:
    """The metrics of answers to the same set of jobs."""
    judged = [answer for answer in answers if not answer.capped]
    capped = [answer for answer in answers if answer.capped]
    full = [answer for answer in capped if answer.truth >= NEAR * answer.card]
    errors = [answer.error for answer in judged]
    sizes = sorted(1.0 if error is None else abs(error) for error in errors)
    signed = [error for error in errors if error is not None]
    return Metrics(
        rows=len(answers),
        failed=sum(answer.said is None for answer in answers),
        capped=len(capped),
        median=statistics.median(sizes) if sizes else None,
        mean=statistics.fmean(sizes) if sizes else None,
        p95=percentile(sizes, 0.95) if sizes else None,
        bias=statistics.median(signed) if signed else None,
        too_low=_share([answer.said is None or answer.said < answer.truth for answer in judged]),
        conserved=statistics.fmean(conserved(answer) for answer in judged) if judged else None,
        told_full=_share([answer.said is not None and answer.said > answer.card for answer in full]),
    )


def conserved(answer: Answer) -> float:
    """What a limit at this answer leaves of the card, as a part of it; see `Metrics`."""
    if answer.said is None:
        return 0.0
    given = min(answer.said, answer.card)
    return (answer.card - given if answer.said >= answer.truth else -given) / answer.card


def percentile(values: Sequence[float], part: float) -> float:
    """The least of the sorted values that is not exceeded by at least that part of them.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("there are no values")
    return values[max(0, math.ceil(part * len(values)) - 1)]


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
