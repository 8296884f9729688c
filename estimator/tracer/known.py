"""What small tensors on the fake device would hold, where that can be told without a kernel.

Integers and booleans that a program copies to the GPU (tokens, labels, lengths, masks) are known, a few
floating-point numbers (boxes) too, and so is what follows from them alone: the same function is called on the
CPU's values. A router's choice of experts is not known; it is assumed to be even, and what follows from it is
marked as assumed.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .patching import put_before

MOST = 1 << 18  # elements of one tensor that is followed
MOST_FLOATS = 1 << 10  # of one that is copied to the device and is not of integers or booleans: boxes, scales

CARRIED = (
    "__getitem__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__and__", "__or__",
    "__xor__", "__invert__", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__",
    "__floordiv__", "__mod__", "__neg__", "__truediv__", "__rtruediv__", "div", "eq", "ne", "lt",
    "le", "gt", "ge", "greater", "less", "not_equal", "logical_and", "logical_or", "logical_not",
    "logical_xor", "any", "all", "sum", "max", "min", "amax", "amin", "cumsum", "diff", "clamp",
    "add", "sub", "mul", "view", "reshape", "flatten", "squeeze", "unsqueeze", "expand",
    "expand_as", "permute", "transpose", "t", "contiguous", "clone", "detach", "long", "int",
    "bool", "float", "to", "type", "repeat", "unbind", "split", "chunk", "sort", "argsort", "flip",
    "roll", "masked_fill", "scatter", "gather", "index_select", "bincount", "count_nonzero", "tril",
    "triu", "isin", "new_zeros", "new_ones", "_is_all_true", "_is_any_true",
)  # fmt: skip
FUNCTIONS = (
    "eq", "ne", "lt", "le", "gt", "ge", "greater", "less", "not_equal", "logical_and", "logical_or",
    "logical_not", "any", "all", "sum", "max", "min", "cumsum", "diff", "clamp", "where", "sort", "argsort",
    "bincount", "histc", "count_nonzero", "tril", "triu", "isin", "stack", "cat", "zeros_like", "ones_like",
    "_is_all_true", "_is_any_true",
)  # fmt: skip
IN_PLACE = (
    "__setitem__", "masked_fill_", "scatter_", "scatter_add_", "index_add_", "index_fill_", "fill_", "zero_",
    "add_", "sub_", "mul_", "__iadd__", "__isub__", "__iand__", "__ior__", "copy_",
)  # fmt: skip
COUNTED = ("sum", "count_nonzero")
FACTORIES = ("tensor", "as_tensor", "arange", "zeros", "ones", "full")


class Values(NamedTuple):
    """What a tensor holds, as a tensor on the CPU; `assumed`: it follows from an assumption."""

    held: Any
    assumed: bool


class Known:
    """The tensors whose values are known; each as long as it lives and is not written to."""

    def __init__(self, torch: Any, fraction: float) -> None:
        self._torch, self._fraction = torch, fraction
        self._entries: Dict[int, Tuple[Any, int, Values]] = {}

    def of(self, tensor: Any) -> Optional[Values]:
        """What this tensor on the device holds; None: nobody knows."""
        entry = self._entries.get(id(tensor))
        if entry is None or entry[0]() is not tensor or _version(tensor) != entry[1]:
            return None
        return entry[2]

    def remember(self, tensor: Any, held: Any, assumed: bool = False) -> None:
        """From now on this is what the tensor on the device holds."""
        key = id(tensor)
        version = _version(tensor)
        if version is None or held.shape != tensor.shape or held.numel() > MOST:
            return
        held = held.to(tensor.dtype) if held.dtype is not tensor.dtype else held
        self._entries[key] = (weakref.ref(tensor, lambda _: self._drop(key)), version, Values(held, assumed))

    def _drop(self, key: int) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry[0]() is None:
            del self._entries[key]

    def follow(self) -> None:
        """Puts the following before torch's own functions."""
        torch = self._torch
        tensor = torch.Tensor
        for name in CARRIED:
            put_before(tensor, name, self._carried)
        for name in FUNCTIONS:
            put_before(torch, name, self._carried)
        put_before(torch.nn.functional, "one_hot", self._carried)
        for name in IN_PLACE:
            put_before(tensor, name, self._in_place)
        for name in FACTORIES:
            put_before(torch, name, self._made)
        put_before(torch, "full_like", self._filled)
        put_before(tensor, "cuda", self._moved)
        put_before(tensor, "to", self._moved)
        for owner in (torch, tensor):
            for name in COUNTED:
                put_before(owner, name, self._counted)
            put_before(owner, "topk", self._chosen)
            put_before(owner, "argmax", self._chosen)

    # --- what follows from what is known ---

    def _carried(self, original: Any, *arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if self._entries and self._concerns(arguments, options):
            self._try(self._remember_result, original, arguments, options, result)
        return result

    def _remember_result(self, original: Any, arguments: Any, options: Any, result: Any) -> None:
        torch = self._torch
        found: List[Values] = []
        if name_of(original) == "expand_as":  # of the other one only the shape is asked for
            arguments, original = (arguments[0], arguments[1].shape), torch.Tensor.expand
        on_cpu = [self._on_cpu(value, found) for value in arguments]
        named = {name: self._on_cpu(value, found) for name, value in options.items() if name != "device"}
        if not found:
            return
        with torch.no_grad():
            held = original(*on_cpu, **named)
        assumed = any(values.assumed for values in found)
        pairs = zip(result, held) if isinstance(result, (tuple, list)) else ((result, held),)  # noqa: B905
        for one, values in pairs:
            if (
                isinstance(one, torch.Tensor)
                and isinstance(values, torch.Tensor)
                and (one.is_cuda or assumed)
            ):
                self.remember(one, values, assumed)

    def _in_place(self, original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        before = self.of(tensor) if self._entries else None
        result = original(tensor, *arguments, **options)
        if before is not None:
            self._try(self._write, original, tensor, before, arguments, options)
        elif name_of(original) == "copy_" and arguments:
            self._try(self._copied, tensor, arguments[0])
        return result

    def _write(self, original: Any, tensor: Any, before: Values, arguments: Any, options: Any) -> None:
        found = [before]
        on_cpu = [self._on_cpu(value, found) for value in arguments]
        named = {name: self._on_cpu(value, found) for name, value in options.items()}
        held = before.held.clone()
        original(held, *on_cpu, **named)
        self.remember(tensor, held, any(values.assumed for values in found))

    def _on_cpu(self, value: Any, found: List[Values]) -> Any:
        """An argument with known values in the place of tensors on the device."""
        torch = self._torch
        if isinstance(value, torch.Tensor):
            values = self.of(value)
            if values is None:
                if value.is_cuda:
                    raise LookupError
                return value
            found.append(values)
            return values.held
        if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
            return type(value)(self._on_cpu(one, found) for one in value)
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, str) and value.startswith("cuda"):
            return "cpu"
        return value

    def _concerns(self, arguments: Any, options: Any) -> bool:
        entries = self._entries
        for value in arguments:
            if id(value) in entries:
                return True
            if type(value) in (tuple, list) and any(id(one) in entries for one in value):
                return True
        return bool(options) and any(id(value) in entries for value in options.values())

    # --- where it comes from ---

    def _moved(self, original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        result = original(tensor, *arguments, **options)
        if result.is_cuda and not tensor.is_cuda:
            self._try(self._copied, result, tensor)
        return result

    def _counted(self, original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        """How many elements of an unknown mask are true: as many as are taken to be selected by it."""
        result = original(tensor, *arguments, **options)
        if result.is_cuda and tensor.dtype is self._torch.bool and self.of(tensor) is None:
            self._try(self._assume_selected, tensor, result)
        return result

    def _assume_selected(self, tensor: Any, result: Any) -> None:
        most = tensor.numel() // max(result.numel(), 1)
        selected = max(int(most * self._fraction + 0.5), min(most, 1))
        self.remember(result, self._torch.full(result.shape, selected), assumed=True)

    def _copied(self, tensor: Any, source: Any) -> None:
        torch = self._torch
        if not isinstance(source, torch.Tensor) or source.layout is not torch.strided or not tensor.is_cuda:
            return
        if source.numel() > (MOST_FLOATS if source.is_floating_point() else MOST) or source.is_complex():
            return
        values = self.of(source)
        if values is None and not source.is_cuda:
            values = Values(source.detach().clone(), False)
        if values is not None:
            self.remember(tensor, values.held.expand(tensor.shape), values.assumed)

    def _made(self, original: Any, *arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if result.is_cuda and result.numel() <= (MOST_FLOATS if result.is_floating_point() else MOST):
            self._try(self._remember_made, original, arguments, options, result)
        return result

    def _remember_made(self, original: Any, arguments: Any, options: Any, result: Any) -> None:
        found: List[Values] = []
        on_cpu = [self._on_cpu(value, found) for value in arguments]
        self.remember(result, original(*on_cpu, **dict(options, device="cpu")), any(v.assumed for v in found))

    def _filled(self, original: Any, tensor: Any, fill_value: Any, *arguments: Any, **options: Any) -> Any:
        """Of the other tensor only the shape is asked for: its values need not be known."""
        result = original(tensor, fill_value, *arguments, **options)
        if result.is_cuda and result.numel() <= (MOST_FLOATS if result.is_floating_point() else MOST):
            self._try(self._remember_filled, result, fill_value)
        return result

    def _remember_filled(self, result: Any, fill_value: Any) -> None:
        if not isinstance(fill_value, self._torch.Tensor):
            self.remember(
                result, self._torch.full(result.shape, fill_value, dtype=result.dtype), assumed=False
            )

    def _chosen(self, original: Any, tensor: Any, *arguments: Any, **options: Any) -> Any:
        """The indices of the largest elements: assumed to fall on all alike."""
        result = original(tensor, *arguments, **options)
        indices = result[1] if isinstance(result, tuple) else result
        if indices.is_cuda and 0 < indices.numel() <= MOST and tensor.dim():
            self._try(self._assume_even, tensor, indices)
        return result

    def _assume_even(self, tensor: Any, indices: Any) -> None:
        choices = tensor.shape[-1]
        if tensor.shape[:-1] not in (indices.shape, indices.shape[:-1]):
            return
        torch = self._torch
        self.remember(indices, (torch.arange(indices.numel()) % choices).view(indices.shape), assumed=True)

    @staticmethod
    def _try(function: Any, *arguments: Any) -> None:
        """What goes wrong while following makes a tensor unknown, no more."""
        with contextlib.suppress(Exception):
            function(*arguments)


def name_of(function: Any) -> str:
    """What a function of torch is called."""
    return getattr(function, "__name__", "")


def _version(tensor: Any) -> Optional[int]:
    try:
        return int(tensor._version)
    except RuntimeError:  # tensors of the inference mode do not count how often they are written
        return 0
