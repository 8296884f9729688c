"""Puts a function of ours in front of one of torch's, so that nobody else can tell.

Tensor subclasses, `torch.fx` and modes such as `torch.device` as a context go by `__torch_function__` and are
told which function was called: they are told of the one that stands in its place, as torch's own Python
functions do it.
"""

from __future__ import annotations

import functools
from typing import Any, Callable


def put_before(owner: Any, name: str, handle: Callable[..., Any]) -> None:
    """Calls of `owner.name` become `handle(original, *arguments, **options)`.

    What is not there, or no function, is left alone.
    """
    original = getattr(owner, name, None)
    if not callable(original):
        return
    from torch.overrides import handle_torch_function, has_torch_function

    @functools.wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        if has_torch_function(arguments):
            return handle_torch_function(call, arguments, *arguments, **options)
        return handle(original, *arguments, **options)

    setattr(owner, name, call)
    _tell_torchscript(original, call)


def _tell_torchscript(original: Any, call: Any) -> None:
    """TorchScript finds torch's operators by the identity of the function."""
    try:
        from torch.jit import _builtins

        operator = _builtins._find_builtin(original)
        if operator is not None:
            _builtins._register_builtin(call, operator)
    except (ImportError, AttributeError):
        pass
