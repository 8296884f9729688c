"""Large tensors on the CPU are not filled with initial weights: their values never matter here.

A copy to the fake device reads nothing, so memory that nobody writes is never taken from the host.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

LARGE = 4096  # elements; smaller ones may well be read by the program

TENSOR_METHODS = ("normal_", "uniform_", "bernoulli_", "log_normal_", "exponential_", "cauchy_")


def leave_uninitialised() -> None:
    """Puts the check in front of `torch.nn.init` and of the random fills of `torch.Tensor`."""
    import torch
    import torch.nn.init

    for name, function in list(vars(torch.nn.init).items()):
        if name.endswith("_") and not name.startswith("_") and callable(function):
            setattr(torch.nn.init, name, _unless_large(torch, function))
    for name in TENSOR_METHODS:
        setattr(torch.Tensor, name, _unless_large(torch, getattr(torch.Tensor, name)))


def _unless_large(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def fill(tensor: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and tensor.numel() >= LARGE:
            return tensor
        return function(tensor, *arguments, **options)

    return fill
