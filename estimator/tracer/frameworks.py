"""Trainers of libraries are told to train for less, and to evaluate and save within that.

They count batches themselves, so that a loader which ends early would confuse them; but each has options for
how far to go. Nothing here imports a library: a trainer is changed when the program imports it.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable

from .life import Life
from .torch_import import when_module_loads

ACCELERATE = "accelerate.utils.operations"
TRANSFORMERS = "transformers.trainer"
LIGHTNING = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


def shorten(life: Life, steps: int) -> None:
    """Twice `steps` optimizer steps, with an evaluation and a checkpoint after each half."""
    when_module_loads(ACCELERATE, _as_long_as_the_others)
    when_module_loads(TRANSFORMERS, lambda module: _transformers(module.Trainer, life, steps))
    for name in LIGHTNING:
        when_module_loads(name, lambda module: _lightning(module.Trainer, life, steps))


def _as_long_as_the_others(operations: Any) -> None:
    """Ranks tell each other their shapes through the GPU, where nothing is: all are taken as equal."""

    @functools.wraps(operations.pad_across_processes)
    def pad_across_processes(tensor: Any, *_: Any, **__: Any) -> Any:
        return tensor

    operations.pad_across_processes = pad_across_processes


def _transformers(trainer: Any, life: Life, steps: int) -> None:
    """Hugging Face's Trainer: `TrainingArguments` as they stand when `train` is called."""
    train = trainer.train

    @functools.wraps(train)
    def shortened(self: Any, *arguments: Any, **options: Any) -> Any:
        resumes = bool(arguments and arguments[0]) or bool(options.get("resume_from_checkpoint"))
        if resumes:  # its steps are counted from those of the checkpoint
            return train(self, *arguments, **options)
        with contextlib.suppress(Exception):  # a later version's arguments may be of another form
            _shorten_arguments(self.args, steps)
        return _managed(life, lambda: train(self, *arguments, **options))

    trainer.train = shortened


def _shorten_arguments(arguments: Any, steps: int) -> None:
    given = arguments.max_steps if arguments.max_steps and arguments.max_steps > 0 else 2 * steps
    arguments.max_steps = min(given, 2 * steps)
    for kind in ("eval", "save", "evaluation"):  # eval_strategy was evaluation_strategy before 4.41
        strategy = getattr(arguments, kind + "_strategy", None)
        name = str(getattr(strategy, "value", strategy))
        if strategy is not None and name in ("steps", "epoch"):
            setattr(arguments, kind + "_strategy", type(strategy)("steps"))
            setattr(arguments, kind.replace("evaluation", "eval") + "_steps", steps)
    if hasattr(arguments, "eval_delay"):
        arguments.eval_delay = 0


def _lightning(trainer: Any, life: Life, steps: int) -> None:
    """Lightning's Trainer: the limits that its own arguments set."""
    construct, fit = trainer.__init__, trainer.fit

    @functools.wraps(construct)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        construct(self, *arguments, **options)
        with contextlib.suppress(Exception):
            _shorten_limits(self, steps)

    @functools.wraps(fit)
    def shortened(self: Any, *arguments: Any, **options: Any) -> Any:
        return _managed(life, lambda: fit(self, *arguments, **options))

    trainer.__init__, trainer.fit = __init__, shortened


def _shorten_limits(trainer: Any, steps: int) -> None:
    if getattr(trainer, "fast_dev_run", False) or getattr(trainer, "overfit_batches", 0):
        return
    batches = steps * max(1, int(getattr(trainer, "accumulate_grad_batches", 1) or 1))
    trainer.limit_train_batches = _fewer(trainer.limit_train_batches, batches)
    for kind in ("val", "test", "predict"):
        name = "limit_%s_batches" % kind
        setattr(trainer, name, _fewer(getattr(trainer, name), steps))
    if isinstance(trainer.val_check_interval, int):
        trainer.val_check_interval = min(trainer.val_check_interval, batches)
    if trainer.check_val_every_n_epoch is not None:
        trainer.check_val_every_n_epoch = 1
    loop = trainer.fit_loop
    if loop.max_epochs is None or loop.max_epochs < 0 or loop.max_epochs > 2:
        loop.max_epochs = 2


def _fewer(limit: Any, batches: int) -> Any:
    """A limit is a number of batches, or a fraction of all; 0 switches off what it limits."""
    if isinstance(limit, int):
        return min(limit, batches)
    return batches if limit else limit


def _managed(life: Life, call: Callable[[], Any]) -> Any:
    """The framework ends training itself meanwhile."""
    before, life.is_managed = life.is_managed, True
    try:
        return call()
    finally:
        life.is_managed = before
