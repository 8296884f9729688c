"""What a GPU held beside the allocator when others measured it: one constant, fitted on half of the models.

nvidia-smi's reading of a whole GPU has the CUDA context of the job and whatever else was on that machine,
which nobody can compute. Every job of one data set had the same; so half of the models tell it for the rest.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One job: its model, what was measured and what the allocator reserves, in bytes."""

    model: str
    truth: int
    reserved: int


def is_fitted(model: str) -> bool:
    """Whether a model belongs to the half that constants are fitted on; by its name alone."""
    return hashlib.sha256(model.encode()).digest()[0] < 128


def beside_allocator(points: Sequence[Point]) -> int:
    """The median of what was measured beside the allocator (bytes), over the half that is fitted on.

    Raises:
        ValueError: none of the points belongs to that half.
    """
    rest = [point.truth - point.reserved for point in points if is_fitted(point.model)]
    if not rest:
        raise ValueError("no model to fit on")
    return round(statistics.median(rest))
