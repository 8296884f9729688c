"""Text generation by transformers ends at its greatest length.

Its loop asks the device whether every sequence is finished, and what is read back from the fake device never
says so. The greatest length is known without the device, and it is where the KV cache is largest.
"""

from __future__ import annotations

import functools
from typing import Any

from .torch_import import when_module_loads

_reached = False


def end_at_greatest_length() -> None:
    """Changes the stopping criteria and the loop of `generate`, whenever they are imported."""
    when_module_loads("transformers.generation.stopping_criteria", _watch_length)
    when_module_loads("transformers.generation.utils", _end_loop)


def _watch_length(module: Any) -> None:
    criterion = module.MaxLengthCriteria.__call__

    @functools.wraps(criterion)
    def called(self: Any, input_ids: Any, *arguments: Any, **options: Any) -> Any:
        global _reached
        _reached = input_ids.shape[-1] >= self.max_length
        return criterion(self, input_ids, *arguments, **options)

    module.MaxLengthCriteria.__call__ = called


def _end_loop(module: Any) -> None:
    unfinished = module.GenerationMixin._has_unfinished_sequences

    @functools.wraps(unfinished)
    def has_unfinished_sequences(*arguments: Any, **options: Any) -> Any:
        global _reached
        if _reached:
            _reached = False
            return False
        return unfinished(*arguments, **options)

    module.GenerationMixin._has_unfinished_sequences = has_unfinished_sequences
