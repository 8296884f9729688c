"""How many regions the detectors of torchvision train on: their samplers have a most, which no reading tells.

`BalancedPositiveNegativeSampler` takes `batch_size_per_image` regions, `positive_fraction` of them positive
at most. Which ones is not known, so the first ones stand for them.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, List

from .known import Known
from .torch_import import when_module_loads

UTILITIES = "torchvision.models.detection._utils"
HEADS = "torchvision.models.detection.roi_heads"


def take_the_most(torch: Any, known: Known) -> None:
    """What the samplers choose is known from now on, as an assumption."""
    when_module_loads(UTILITIES, lambda module: _follow_masks(torch, known, module))
    when_module_loads(HEADS, lambda module: _follow_labels(torch, known, module))


def _positives(sampler: Any, count: int) -> int:
    return min(count, int(sampler.batch_size_per_image * sampler.positive_fraction))


def _follow_masks(torch: Any, known: Known, module: Any) -> None:
    """Of each image, a mask of the positive and one of the negative regions; they do not overlap."""
    kind = module.BalancedPositiveNegativeSampler
    sample = kind.__call__

    @functools.wraps(sample)
    def __call__(self: Any, *arguments: Any, **options: Any) -> Any:
        positive, negative = result = sample(self, *arguments, **options)
        with contextlib.suppress(Exception):  # another version may be of another form
            for mask, other in zip(positive, negative):  # noqa: B905 - newer than 3.9
                first = _positives(self, mask.numel())
                _remember(torch, known, mask, 0, first)
                _remember(torch, known, other, first, self.batch_size_per_image)
        return result

    kind.__call__ = __call__


def _follow_labels(torch: Any, known: Known, module: Any) -> None:
    """The labels of the sampled regions: those of positive ones are not 0."""
    kind = module.RoIHeads
    select = kind.select_training_samples

    @functools.wraps(select)
    def select_training_samples(self: Any, *arguments: Any, **options: Any) -> Any:
        result = select(self, *arguments, **options)
        with contextlib.suppress(Exception):
            labels: List[Any] = result[2]
            for one in labels:
                _remember(torch, known, one, 0, _positives(self.fg_bg_sampler, one.numel()))
        return result

    kind.select_training_samples = select_training_samples


def _remember(torch: Any, known: Known, tensor: Any, first: int, last: int) -> None:
    """The elements from `first` up to `last` are one, the others zero."""
    if tensor.is_cuda and known.of(tensor) is None:
        held = torch.zeros(tensor.shape, dtype=tensor.dtype)
        held[first:last] = 1
        known.remember(tensor, held, assumed=True)
