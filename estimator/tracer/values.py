"""What a program reads back from a device whose kernels do nothing.

What is known (`known.py`) reads as it is. Floating point reads as one: finite, and good to divide by and to
take the logarithm of. Integers read as one where a single one is read, which is often a count, and as zero,
which is a valid index, where many are. Booleans read as false, unless a comparison of ones is true or they
say that something is finite.
"""

from __future__ import annotations

import contextlib
import math
import operator
import sys
import weakref
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from . import detection
from .known import MOST, Known, name_of
from .patching import put_before
from .sizes import Sizes

COMPARISONS = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge,
}  # fmt: skip
SAME = (
    "all",
    "any",
    "clone",
    "detach",
    "view",
    "reshape",
    "squeeze",
    "flatten",
    "bool",
    "contiguous",
    "amin",
    "_is_all_true",
    "_is_any_true",
)
BOTH: Dict[str, Callable[[bool, bool], bool]] = {
    "__and__": operator.and_, "logical_and": operator.and_,
    "__or__": operator.or_, "logical_or": operator.or_,
}  # fmt: skip
NOT = ("__invert__", "logical_not")
SIZED = (
    "__getitem__",
    "view",
    "reshape",
    "expand",
    "repeat",
    "split",
    "narrow",
    "new_zeros",
    "new_empty",
    "new_full",
)
SIZED_FACTORIES = ("empty", "zeros", "ones", "full", "rand", "randn", "arange", "split", "narrow")
ALWAYS = {"isfinite": True, "isnan": False, "isinf": False, "isreal": True}


class MadeUp(int):
    """An integer that was read back; it is noted where a size is made of it."""

    def __reduce__(self) -> Any:
        return int, (int(self),)

    def _of(name: str) -> Any:  # type: ignore[misc]
        plain = getattr(int, name)

        def method(self: Any, *others: Any) -> Any:
            result = plain(self, *others)
            return MadeUp(result) if type(result) is int else result

        return method

    __add__, __radd__, __sub__, __rsub__ = _of("__add__"), _of("__radd__"), _of("__sub__"), _of("__rsub__")
    __mul__, __rmul__, __floordiv__ = _of("__mul__"), _of("__rmul__"), _of("__floordiv__")
    __rfloordiv__, __mod__, __rmod__ = _of("__rfloordiv__"), _of("__mod__"), _of("__rmod__")


class Readings:
    """Answers every way in which a program reads the device."""

    def __init__(self, torch: Any, known: Known, sizes: Sizes) -> None:
        self._torch, self._known, self._sizes = torch, known, sizes
        self._truths: Dict[int, Tuple[Any, bool]] = {}  # booleans that read as true; whether that is open
        self._library: Any = None
        self._zero_is_meant = False
        self._finite_is_asked = False  # within torch: the next boolean says that all is finite

    def answer(self) -> None:
        """Registers the answers, for the life of the process."""
        torch = self._torch
        tensor = torch.Tensor
        self._library = torch.library.Library("aten", "IMPL")
        self._library.impl("_local_scalar_dense", self._scalar, "CUDA")
        for name in ("cpu", "to"):
            put_before(tensor, name, self._copied_back)
        put_before(tensor, "tolist", self._tolist)
        put_before(tensor, "copy_", self._copied_into)
        put_before(tensor, "item", self._item)
        for name in ("__int__", "__float__"):
            put_before(tensor, name, self._converted)
        put_before(tensor, "__index__", self._used_as_integer)
        for owner in (tensor, torch):
            put_before(owner, "nonzero", self._selected_on_host)
        for owner, names in ((tensor, SIZED), (torch, SIZED_FACTORIES)):
            for name in names:
                put_before(owner, name, self._sized)
        for name, function in COMPARISONS.items():
            for owner, called in ((tensor, name), (tensor, "__%s__" % name), (torch, name)):
                put_before(owner, called, self._compared(function))
        for name, truth in ALWAYS.items():
            for owner in (tensor, torch):
                put_before(owner, name, self._always(truth))
        for owner in (tensor, torch):
            for name in SAME:
                put_before(owner, name, self._kept)
            for name in NOT:
                put_before(owner, name, self._negated)
            for name, both in BOTH.items():
                put_before(owner, name, self._joined(both))
        self._let_scalers_step()
        self._let_eig_begin()
        self._let_lbfgs_go_on()

    def _scalar(self, tensor: Any) -> Any:
        """What `item`, `float`, `int`, `bool` and `if` read, also within torch."""
        values = self._known.of(tensor)
        if values is not None:
            return values.held.item()
        if tensor.is_complex():
            return complex(1.0)
        if tensor.is_floating_point():
            return 0.0 if self._zero_is_meant else 1.0
        if tensor.dtype is self._torch.bool:
            asked, self._finite_is_asked = self._finite_is_asked, False
            return asked or self._is_true(tensor)
        return 1

    # --- many values at once ---

    def _copied_back(self, original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        result = original(tensor, *arguments, **options)
        if tensor.is_cuda and not result.is_cuda:
            self._fill(result, tensor)
        return result

    def _copied_into(self, original: Any, tensor: Any, source: Any, *arguments: Any, **options: Any) -> Any:
        result = original(tensor, source, *arguments, **options)
        if not tensor.is_cuda and isinstance(source, self._torch.Tensor) and source.is_cuda:
            self._fill(tensor, source)
        return result

    def _fill(self, host: Any, tensor: Any) -> None:
        """Zeros have been copied; a large tensor keeps them, for its pages were never taken."""
        if host.numel() > MOST or host.device.type != "cpu" or host.layout is not self._torch.strided:
            return
        with self._torch.no_grad(), contextlib.suppress(RuntimeError):
            values = self._known.of(tensor)
            if values is not None:
                host.copy_(values.held)
            elif host.is_floating_point() or host.is_complex() or self._is_true(tensor):
                host.fill_(1)
            if not host.is_floating_point() and (values is None or values.assumed):
                self._known.remember(host, host.clone(), assumed=True)

    def _tolist(self, original: Any, tensor: Any) -> Any:
        if self._is_made_up(tensor):
            self._sizes.was_read()
        return original(tensor.cpu() if tensor.is_cuda else tensor)

    # --- integers ---

    def _item(self, original: Any, tensor: Any) -> Any:
        value = original(tensor)
        if type(value) is not bool and self._is_made_up(tensor):
            self._sizes.was_read()
            if type(value) is int:
                self._sizes.integers_read += 1
                return MadeUp(value)
        return value

    def _converted(self, original: Any, tensor: Any) -> Any:
        """`int(tensor)`, `float(tensor)`: Python makes plain numbers of them, which cannot be marked."""
        if self._is_made_up(tensor):
            self._sizes.was_read()
        return original(tensor)

    def _sized(self, original: Any, *arguments: Any, **options: Any) -> Any:
        if self._sizes.integers_read and _mentions(arguments):
            self._sizes.note("an integer read back")
        return original(*arguments, **options)

    def _used_as_integer(self, original: Any, tensor: Any) -> Any:
        """An index, the end of a slice, a size."""
        if self._is_made_up(tensor):
            self._sizes.note("an integer read back")
        return original(tensor)

    def _selected_on_host(self, original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        """Of what was copied back and is not known; on the device, `nonzero` is answered in `sizes.py`."""
        if not tensor.is_cuda and self._is_made_up(tensor):
            self._sizes.note("nonzero")
        return original(tensor, *arguments, **options)

    def _is_made_up(self, tensor: Any) -> bool:
        values = self._known.of(tensor)
        return tensor.is_cuda if values is None else values.assumed

    # --- booleans ---

    def _is_true(self, tensor: Any) -> bool:
        entry = self._truths.get(id(tensor))
        return entry is not None and entry[0]() is tensor

    def _is_open(self, tensor: Any) -> bool:
        return self._is_true(tensor) and self._truths[id(tensor)][1]

    def _set(self, result: Any, truth: bool, is_open: bool = False) -> Any:
        if truth and isinstance(result, self._torch.Tensor) and result.is_cuda:
            key = id(result)

            def drop(gone: Any) -> None:
                if key in self._truths and self._truths[key][0] is gone:
                    del self._truths[key]

            self._truths[key] = (weakref.ref(result, drop), is_open)
        return result

    def _compared(self, function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        """Two unknown tensors may well be in either order: an `any` of that is false, an `all` is true."""

        def compare(original: Any, *arguments: Any, **options: Any) -> Any:
            result = original(*arguments, **options)
            if len(arguments) == 2 and getattr(result, "is_cuda", False):
                sides = tuple(self._number(value, function) for value in arguments)
                if None not in sides:
                    is_open = all(getattr(value, "is_cuda", False) for value in arguments)
                    return self._set(result, bool(function(*sides)), is_open)
            return result

        return compare

    def _number(self, value: Any, function: Any) -> Optional[float]:
        """What a side of a comparison counts as; unknown integers are taken to differ from all others."""
        if isinstance(value, (int, float)):
            return float(value)
        if not isinstance(value, self._torch.Tensor):
            return None
        if value.is_floating_point():
            return 1.0 if value.is_cuda or value.numel() != 1 else float(value.detach())
        if value.dtype is self._torch.bool or not value.is_cuda:
            return None
        return 0.5 if function in (operator.eq, operator.ne) else 1.0

    def _always(self, truth: bool) -> Callable[..., Any]:
        def answer(original: Any, *arguments: Any, **options: Any) -> Any:
            result = original(*arguments, **options)
            if result.is_cuda and result.numel() <= MOST:
                self._known.remember(result, self._torch.full(result.shape, truth))
            return self._set(result, truth)

        return answer

    def _kept(self, original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        result = original(tensor, *arguments, **options)
        if not self._truths or (name_of(original) in ("any", "_is_any_true") and self._is_open(tensor)):
            return result
        return self._set(result, self._is_true(tensor), self._is_open(tensor))

    def _negated(self, original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        result = original(tensor, *arguments, **options)
        is_bool = getattr(result, "dtype", None) is self._torch.bool
        return self._set(result, not self._is_true(tensor)) if is_bool else result

    def _joined(self, both: Callable[[bool, bool], bool]) -> Callable[..., Any]:
        def join(original: Any, *arguments: Any, **options: Any) -> Any:
            result = original(*arguments, **options)
            if self._truths and len(arguments) == 2:
                return self._set(
                    result, both(*(value is True or self._is_true(value) for value in arguments))
                )
            return result

        return join

    # --- where a zero is the right answer ---

    def _let_scalers_step(self) -> None:
        """`found_inf` must read as zero, or a scaler would skip every step."""
        try:
            from torch.amp.grad_scaler import GradScaler
        except ImportError:  # before torch 2.3
            from torch.cuda.amp.grad_scaler import GradScaler
        put_before(GradScaler, "_maybe_opt_step", self._with_zero)

    def _with_zero(self, original: Any, *arguments: Any, **options: Any) -> Any:
        with self._zeros():
            return original(*arguments, **options)

    # --- where torch itself asks whether all is finite ---

    def _let_eig_begin(self) -> None:
        for name in ("eig", "eigvals"):
            put_before(self._torch.linalg, name, self._of_finite)

    def _of_finite(self, original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        """`eigvals` calls `eig` where there will be a gradient, and else does not ask."""
        has_gradient = self._torch.is_grad_enabled() and tensor.requires_grad
        self._finite_is_asked = tensor.is_cuda and (name_of(original) == "linalg_eig" or has_gradient)
        try:
            return original(tensor, *arguments, **options)
        finally:
            self._finite_is_asked = False

    # --- where values that never change would end a loop ---

    def _let_lbfgs_go_on(self) -> None:
        put_before(self._torch.optim.LBFGS, "step", _without_tolerance)
        put_before(sys.modules["torch.optim.lbfgs"], "_strong_wolfe", _briefly)

    @contextlib.contextmanager
    def _zeros(self) -> Iterator[None]:
        self._zero_is_meant = True
        try:
            yield
        finally:
            self._zero_is_meant = False


def _without_tolerance(original: Any, optimizer: Any, *arguments: Any, **options: Any) -> Any:
    """A loss that stays the same ends an iteration of LBFGS: it goes on until its history is full."""
    group = optimizer.param_groups[0]
    given = {name: group[name] for name in ("max_iter", "max_eval", "tolerance_change", "tolerance_grad")}
    most = max(given["max_iter"], group["history_size"] + 2)
    try:
        group.update(
            max_iter=most,
            max_eval=max(given["max_eval"], 5 * most),
            tolerance_change=-math.inf,
            tolerance_grad=-math.inf,
        )
        return original(optimizer, *arguments, **options)
    finally:
        group.update(given)


def _briefly(original: Any, *arguments: Any, **options: Any) -> Any:
    """A line search takes its most memory when it has bracketed the minimum; it would never find it."""
    return original(*arguments, **dict(options, max_ls=min(options.get("max_ls", 3), 3)))


def _mentions(arguments: Any, depth: int = 2) -> bool:
    for value in arguments:
        if type(value) is slice:
            value = (value.start, value.stop)
        if type(value) is MadeUp:
            return True
        if depth and type(value) in (tuple, list) and _mentions(value, depth - 1):
            return True
    return False


def make_readable(fraction: float) -> Sizes:
    """Gives the device values to read and sizes to go on with; called once, when torch has been imported.

    `fraction`: of the most elements that an operator can select, where nobody knows how many it does.
    """
    import torch

    known = Known(torch, fraction)
    sizes = Sizes(torch, known, fraction)
    readings = Readings(torch, known, sizes)
    known.follow()
    sizes.answer()
    readings.answer()
    detection.take_the_most(torch, known)
    # no check of values: a distribution's parameters do not exist
    torch.distributions.Distribution.set_default_validate_args(False)
    return sizes
