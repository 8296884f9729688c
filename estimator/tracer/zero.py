"""DeepSpeed's ZeRO: its step is one optimizer step, its kernels need no compiler, and no gradient overflows.

Nothing here imports DeepSpeed; its modules are changed when the program imports them.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from .torch_import import when_module_loads

# modules and their classes that take steps of an optimizer within
OPTIMIZERS = {
    "deepspeed.runtime.zero.stage_1_and_2": "DeepSpeedZeroOptimizer",
    "deepspeed.runtime.zero.stage3": "DeepSpeedZeroOptimizer_Stage3",
    "deepspeed.runtime.bf16_optimizer": "BF16_Optimizer",
    "deepspeed.runtime.fp16.fused_optimizer": "FP16_Optimizer",
    "deepspeed.runtime.fp16.unfused_optimizer": "FP16_UnfusedOptimizer",
}
BUILDER = "deepspeed.ops.op_builder.builder"
# ops that write in place what the optimizer allocated in Python: their kernels allocate nothing
IN_PLACE = ("fused_adam", "cpu_adam", "fused_lion", "cpu_lion", "cpu_adagrad")

_AsOneStep = Callable[[Callable[..., Any]], Callable[..., Any]]


def make_traceable(as_one_step: _AsOneStep) -> None:
    """`as_one_step` wraps a function so that all optimizer steps within count as one."""
    for name in OPTIMIZERS:
        when_module_loads(name, functools.partial(_change_optimizer, as_one_step=as_one_step))
    when_module_loads("deepspeed.runtime.utils", lambda module: _never_overflows(module.CheckOverflow))
    when_module_loads("deepspeed.runtime.zero.utils", _agree)
    when_module_loads(BUILDER, lambda module: _without_compiler(module.OpBuilder))


def _change_optimizer(module: Any, as_one_step: _AsOneStep) -> None:
    kind = getattr(module, OPTIMIZERS[module.__name__])
    kind.step = as_one_step(kind.step)
    _never_overflows(kind)


def _never_overflows(kind: Any) -> None:
    """An unknown value that is read back is 1, which would be an overflow; what the check allocates stays."""
    for name in ("has_overflow", "check_using_norm", "check"):
        if name in vars(kind):
            setattr(kind, name, _answering_false(vars(kind)[name]))


def _answering_false(check: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(check)
    def checked(*arguments: Any, **options: Any) -> bool:
        check(*arguments, **options)
        return False

    return checked


def _agree(utils: Any) -> None:
    """What rank 0 would have sent is what this rank has."""

    def same(ints: Any) -> Any:
        return ints

    for name in (
        "assert_lst_len_same_as_other_ranks",
        "get_lst_from_rank0",
        "assert_ints_same_as_other_ranks",
    ):
        if hasattr(utils, name):
            setattr(utils, name, same)


def _without_compiler(builder: Any) -> None:
    """Kernels do nothing here, so they need not be built, with a CUDA compiler that a login node has not."""
    load = builder.load

    @functools.wraps(load)
    def loaded(self: Any, *arguments: Any, **options: Any) -> Any:
        return _InPlace() if self.name in IN_PLACE else load(self, *arguments, **options)

    builder.load = loaded


class _InPlace:
    """The module of a built op; its functions take anything and leave it as it is."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: 0
