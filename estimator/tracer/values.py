"""What a program reads back from a device whose kernels do nothing.

The bytes are zeros. Zero is the right answer for a count of infinities or of selected elements, and a
bad one for a loss or a norm (division, logarithm): scalars of floating point read as one instead.
"""

from __future__ import annotations

import functools
from typing import Any

_zero_is_meant = False


def make_readable() -> None:
    """Wraps the ways in which a program reads a scalar."""
    import torch

    for name in ("item", "__float__"):
        setattr(torch.Tensor, name, _one_for_zero(getattr(torch.Tensor, name)))
    try:
        from torch.amp.grad_scaler import GradScaler
    except ImportError:  # before torch 2.3
        from torch.cuda.amp.grad_scaler import GradScaler
    GradScaler._maybe_opt_step = _with_zero(GradScaler._maybe_opt_step)


def _one_for_zero(read: Any) -> Any:
    @functools.wraps(read)
    def scalar(tensor: Any) -> Any:
        value = read(tensor)
        if value == 0.0 and tensor.is_cuda and tensor.is_floating_point() and not _zero_is_meant:
            return 1.0
        return value

    return scalar


def _with_zero(method: Any) -> Any:
    """`found_inf` must read as zero, or the scaler would skip every step."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        global _zero_is_meant
        _zero_is_meant = True
        try:
            return method(*arguments, **options)
        finally:
            _zero_is_meant = False

    return call
