"""Data loaders end early, so that a program goes on to what follows: evaluation, saving, the next epoch.

The iterators of `torch.utils.data.DataLoader` are changed in place: a loader keeps its class and its length,
its workers end as they do when the last batch was taken.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from typing import Any, Callable, Optional

from . import callers
from .life import Life, Pass, describe

_STATE = "_gpumem_pass"


def cut_short(
    life: Life, allocated: Callable[[], int], hold: Callable[[int], None], is_traced: Callable[[], bool]
) -> None:
    """Lets `life` say when a pass over a loader is over.

    `allocated` tells the bytes allocated on the GPU; `hold` takes as many as batches that are left out would
    have kept. `is_traced` tells whether this process is traced: those that it forks have the change, too.
    """
    import torch.utils.data.dataloader as dataloader

    base = dataloader._BaseDataLoaderIter
    original_next, original_reset = base.__next__, base._reset

    @functools.wraps(original_reset)
    def _reset(iterator: Any, *arguments: Any, **options: Any) -> Any:
        last = iterator.__dict__.pop(_STATE, None)  # persistent workers: the same iterator begins anew
        if last is not None:
            life.ends(last, cut=last.cut)
        return original_reset(iterator, *arguments, **options)

    @functools.wraps(original_next)
    def __next__(iterator: Any) -> Any:
        if not is_traced():
            return original_next(iterator)
        this: Optional[Pass] = iterator.__dict__.get(_STATE)
        if this is None:
            this = iterator.__dict__[_STATE] = life.begins(_length(iterator))
            weakref.finalize(iterator, life.ends, this, False).atexit = False  # a `break`
        if this.cut:
            raise StopIteration
        this.can_be_cut = callers.expects_an_end(sys._getframe(1))
        if this.can_be_cut and life.wants_to_end(this, allocated()):
            left_out = this.left_out()
            if not this.grows_by or left_out is None or this.is_held:
                life.ends(this, cut=True)
                _stop_workers(iterator)
                raise StopIteration
            this.is_held = True  # and one more batch on top of what the others would have kept
            hold(this.grows_by * max(0, left_out - 1))
        try:
            batch = original_next(iterator)
        except StopIteration:
            life.ends(this, cut=False)
            raise
        with contextlib.suppress(Exception):  # a batch may be any object
            life.got(this, *describe(batch))
        return batch

    base.__next__, base._reset = __next__, _reset


def _length(iterator: Any) -> Optional[int]:
    try:
        return len(iterator)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def _stop_workers(iterator: Any) -> None:
    stop = getattr(iterator, "_shutdown_workers", None)
    if stop is not None and not getattr(iterator, "_persistent_workers", False):
        stop()
