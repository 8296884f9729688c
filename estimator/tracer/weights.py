"""Large tensors of floating point on the CPU are not computed: their values never matter here.

A copy to the fake device reads nothing, so memory that nobody writes is never taken from the host, and a
model of any size is built, converted and moved in no time. Integers and small tensors are left alone: a
program may well read them.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from typing import Any, Callable

from .patching import put_before

INITIALISED = 4096  # elements from which on initial weights are not drawn
COPIED = 1 << 20  # elements from which on a tensor is not copied, converted or zeroed by writing
FILLED = 1 << 24  # elements from which on it is not filled with other numbers

TENSOR_FILLS = ("normal_", "uniform_", "bernoulli_", "log_normal_", "exponential_", "cauchy_")
IN_PLACE = ("mul_", "div_", "add_", "sub_", "clamp_", "erfinv_", "lerp_", "addcmul_", "addcdiv_")
CONVERSIONS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}


def leave_uninitialised() -> None:
    """Puts the checks in front of torch's functions that fill, copy and convert tensors."""
    import torch
    import torch.nn.init

    for name, function in list(vars(torch.nn.init).items()):
        if name.endswith("_") and not name.startswith("_") and callable(function):
            setattr(torch.nn.init, name, _unless_large(torch, function))
    for name in TENSOR_FILLS:
        put_before(torch.Tensor, name, _fill(torch, INITIALISED))
    for name in IN_PLACE:
        put_before(torch.Tensor, name, _fill(torch, COPIED))
    put_before(torch.Tensor, "fill_", _fill(torch, FILLED))
    _Copies(torch).put()


def _unless_large(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def fill(tensor: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and tensor.numel() >= INITIALISED:
            return tensor
        return function(tensor, *arguments, **options)

    return fill


def _fill(torch: Any, least: int) -> Callable[..., Any]:
    """In place: a large tensor keeps what it has."""

    def fill(original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        if _is_large(torch, tensor, least) and not _is_graph(torch, tensor):
            return tensor
        return original(tensor, *arguments, **options)

    return fill


def _is_large(torch: Any, tensor: Any, least: int = COPIED) -> bool:
    """Whether it is floating point in the CPU's memory and has at least so many elements.

    Subclasses (DTensor, FakeTensor, quantised ones) may have no memory of their own, or be more than it.
    """
    return bool(
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and (tensor.is_floating_point() or tensor.is_complex())
        and tensor.numel() >= least
    )


def _is_graph(torch: Any, *tensors: Any) -> bool:
    """Whether autograd would remember the operation: then it must take place."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


class _Copies:
    """Functions that would write a new large tensor give one that nobody has written."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        libc = ctypes.CDLL(None, use_errno=True)
        self._madvise = libc.madvise
        self._madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def put(self) -> None:
        """Puts them before torch's own."""
        torch = self._torch
        tensor = torch.Tensor
        put_before(tensor, "to", self._to)
        put_before(tensor, "type", self._type)
        for name, dtype in CONVERSIONS.items():
            put_before(tensor, name, self._convert(getattr(torch, dtype)))
        put_before(tensor, "clone", self._clone)
        put_before(tensor, "__deepcopy__", self._deepcopy)
        put_before(tensor, "contiguous", self._contiguous)
        put_before(tensor, "copy_", self._copy)
        put_before(tensor, "zero_", self._zero)
        put_before(tensor, "pin_memory", self._pin_memory)
        put_before(torch, "zeros", self._made(torch.empty, COPIED, floating=False))
        put_before(torch, "zeros_like", self._made(torch.empty_like, COPIED, floating=False))
        for name in ("ones", "randn", "rand"):
            put_before(torch, name, self._made(torch.empty, FILLED, floating=True))
            put_before(torch, name + "_like", self._made(torch.empty_like, FILLED, floating=True))
        put_before(torch, "cat", self._join)
        put_before(torch, "stack", self._join)

    def blank(self, like: Any, dtype: Any = None, contiguous: bool = False) -> Any:
        """A tensor of zeros that takes no memory, with the shape and strides of `like`."""
        torch = self._torch
        with torch.no_grad():
            options = {"memory_format": torch.contiguous_format} if contiguous else {}
            return self._forget(torch.empty_like(like, dtype=dtype, device="cpu", **options))

    def _forget(self, tensor: Any) -> Any:
        """Gives the pages of a new tensor back, which come again as zeros."""
        if type(tensor) is not self._torch.Tensor:  # a mode that is active made another kind of it
            with self._torch.no_grad():
                return tensor.zero_()
        address, size = tensor.data_ptr(), tensor.untyped_storage().nbytes()
        first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first and self._madvise(first, last - first, mmap.MADV_DONTNEED) == 0:
            ctypes.memset(address, 0, first - address)
            ctypes.memset(last, 0, address + size - last)
        return tensor

    def _may_skip(self, tensor: Any, least: int = COPIED) -> bool:
        return _is_large(self._torch, tensor, least) and not _is_graph(self._torch, tensor)

    def _to(self, original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        if not self._may_skip(tensor):
            return original(tensor, *arguments, **options)
        dtype, device = self._target(tensor, arguments, options)
        if dtype is None or dtype is tensor.dtype or not (dtype.is_floating_point or dtype.is_complex):
            return original(tensor, *arguments, **options)
        if device is None or device.type == "cpu":
            return self.blank(tensor, dtype)
        if (
            options.get("non_blocking") or True in arguments
        ):  # then the device converts, and needs memory for it
            return original(tensor, *arguments, **options)
        return original(self.blank(tensor, dtype), *arguments, **options)

    def _target(self, tensor: Any, arguments: Any, options: Any) -> Any:
        """The dtype and the device that `Tensor.to` was asked for."""
        torch = self._torch
        dtype: Any = None
        device: Any = None
        for value in (*arguments, *(options.get(name) for name in ("dtype", "device", "other"))):
            if isinstance(value, torch.dtype):
                dtype = value
            elif isinstance(value, torch.Tensor):
                dtype, device = value.dtype, value.device
            elif isinstance(value, (str, torch.device)):
                device = torch.device(value)
            elif isinstance(value, int) and not isinstance(value, bool):
                device = torch.device("cuda", value)
        return dtype, device

    def _type(self, original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        if len(arguments) == 1 and isinstance(arguments[0], self._torch.dtype) and not options:
            return self._to(lambda t, *a: original(t, *a), tensor, arguments[0])
        return original(tensor, *arguments, **options)

    def _convert(self, dtype: Any) -> Callable[..., Any]:
        def convert(original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
            if tensor.dtype is dtype or not self._may_skip(tensor):
                return original(tensor, *arguments, **options)
            return self.blank(tensor, dtype)

        return convert

    def _clone(self, original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        if arguments or options.get("memory_format") not in (None, self._torch.preserve_format):
            return original(tensor, *arguments, **options)
        return self.blank(tensor) if self._may_skip(tensor) else original(tensor, **options)

    def _deepcopy(self, original: Any, tensor: Any, memo: Any) -> Any:
        torch = self._torch
        plain = type(tensor) is torch.Tensor and not tensor.requires_grad and self._is_whole(tensor)
        if id(tensor) in memo or not plain or not self._may_skip(tensor):
            return original(tensor, memo)
        memo[id(tensor)] = copy = self.blank(tensor)
        return copy

    def _contiguous(self, original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        if arguments or options or not self._may_skip(tensor) or tensor.is_contiguous():
            return original(tensor, *arguments, **options)
        return self.blank(tensor, contiguous=True)

    def _copy(self, original: Any, tensor: Any, source: Any, *arguments: Any, **options: Any) -> Any:
        large = self._may_skip(tensor) and self._may_skip(source)
        return tensor if large else original(tensor, source, *arguments, **options)

    def _zero(self, original: Any, tensor: Any) -> Any:
        if not self._may_skip(tensor) or not self._is_whole(tensor):
            return original(tensor)
        return self._forget(tensor)

    @staticmethod
    def _is_whole(tensor: Any) -> bool:
        """Whether it is all of its storage, which belongs to this process alone."""
        storage = tensor.untyped_storage()
        return bool(storage.nbytes() == tensor.nbytes and not storage.is_shared())

    def _pin_memory(self, original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        if not self._may_skip(tensor) or tensor.is_pinned():
            return original(tensor, *arguments, **options)
        return self._torch.empty_like(tensor, pin_memory=True)

    def _made(self, blank: Any, least: int, floating: bool) -> Callable[..., Any]:
        """A factory: a large result on the CPU is memory fresh from the system, which is zeros already."""
        torch = self._torch

        def make(original: Any, *arguments: Any, **options: Any) -> Any:
            like = next((value for value in arguments[:1] if isinstance(value, torch.Tensor)), None)
            if like is not None and type(like) not in (torch.Tensor, torch.nn.Parameter):
                return original(*arguments, **options)
            device = options.get("device", "cpu" if like is None else like.device)
            asked = _count(arguments, options) if like is None else like.numel()
            dtype = options.get("dtype") or (torch.get_default_dtype() if like is None else like.dtype)
            plain = not {"out", "generator", "layout", "names"}.intersection(options)
            if asked < least or not plain or (floating and not dtype.is_floating_point):
                return original(*arguments, **options)
            if torch.device(device or "cpu").type != "cpu" or options.get("pin_memory"):
                return original(*arguments, **options)
            return self._forget(blank(*arguments, **options))

        return make

    def _join(self, original: Any, tensors: Any, *arguments: Any, **options: Any) -> Any:
        if (
            not isinstance(tensors, (list, tuple))
            or "out" in options
            or not any(self._may_skip(tensor) for tensor in tensors)
        ):
            return original(tensors, *arguments, **options)
        torch = self._torch
        if not all(tensor.device.type == "cpu" and not _is_graph(torch, tensor) for tensor in tensors):
            return original(tensors, *arguments, **options)
        joined = original([torch.empty_like(t, device="meta") for t in tensors], *arguments, **options)
        return self.blank(joined)


def _count(arguments: Any, options: Any) -> int:
    """How many elements a factory function is asked for; 0: not to be told."""
    shape = options.get("size", arguments[0] if len(arguments) == 1 else arguments)
    if isinstance(shape, int):
        return int(shape)
    count = 1
    try:
        for size in shape:
            count *= int(size)
    except (TypeError, ValueError):
        return 0
    return count
