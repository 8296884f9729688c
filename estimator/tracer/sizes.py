"""Sizes that follow data: kernels do nothing, so nobody counts how many elements a mask selects.

Where the values are known (`known.py`) the size is. Elsewhere it is `fraction` of the most that it can be,
and the place in the program is noted: the estimate is bounded by it.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, Optional, Tuple

from .counts import Uses, reading_frame
from .known import MOST, Known
from .patching import put_before

OWN = os.path.dirname(os.path.abspath(__file__))
OPERATORS = os.path.join("torchvision", "ops")
CALLERS = 2  # functions of the program that are remembered with a size

Frame = Tuple[str, int, str]  # file, line, function


class Sizes:
    """Answers the operators whose results have a size that only a kernel could tell."""

    def __init__(self, torch: Any, known: Known, fraction: float) -> None:
        self._torch, self._known, self._fraction = torch, known, fraction
        self._torch_folder = os.path.dirname(torch.__file__)
        self._noted: Dict[Tuple[str, Tuple[Frame, ...]], int] = {}
        self._library: Any = None
        self._uses = Uses()
        self._skipped = (OWN, self._torch_folder + os.sep, "<")
        self.integers_read = 0
        self._most_selected: Optional[int] = None
        self._selects_all = False
        self._scattered: Dict[Tuple[int, Tuple[int, ...]], int] = {}  # mask and source -> elements selected

    def answer(self) -> None:
        """Registers the operators, for the life of the process."""
        put_before(self._torch, "where", self._where)
        for owner, name in (
            (self._torch, "masked_scatter"),
            (self._torch.Tensor, "masked_scatter"),
            (self._torch.Tensor, "masked_scatter_"),
        ):
            put_before(owner, name, self._masked_scatter)
        library = self._library = self._torch.library.Library("aten", "IMPL")
        for name, kernel in (
            ("nonzero", self._nonzero),
            ("_unique2", self._unique2),
            ("unique_dim", self._unique_dim),
            ("unique_consecutive", self._unique_consecutive),
            ("repeat_interleave.Tensor", self._repeat_interleave),
            ("masked_scatter_backward", self._masked_scatter_backward),
            ("_linalg_check_errors", self._checked),
        ):
            try:
                library.impl(name, kernel, "CUDA")
            except RuntimeError:  # not in this torch
                continue

    def note(self, what: str) -> None:
        """The size of a result of `what` is a bound; the lines of the program are remembered with it."""
        frames = self._callers()
        if frames is not None:
            self._noted[(what, frames)] = self._noted.get((what, frames), 0) + 1

    def was_read(self) -> None:
        """A made-up number is read: it is noted if the program makes a size or a count of it."""
        if self._uses.are_counts(reading_frame(self._skipped)):
            self.note("an integer read back")

    def listed(self) -> List[Dict[str, Any]]:
        """Every place where a size was a bound, and how often."""
        return [
            {"what": what, "frames": [list(frame) for frame in frames], "count": count}
            for (what, frames), count in list(self._noted.items())[:1000]
        ]

    def _callers(self) -> Optional[Tuple[Frame, ...]]:
        """The innermost functions that belong neither to torch nor to us; None: a tensor is only printed."""
        frame: Any = sys._getframe(1)
        found: List[Frame] = []
        while frame is not None and len(found) < CALLERS:
            name, function = frame.f_code.co_filename, frame.f_code.co_name
            if name.endswith("_tensor_str.py"):
                return None
            own = name.startswith(self._skipped) or OPERATORS in name
            if not own and (function != "<module>" or not found):
                found.append((name, frame.f_lineno, function))
            frame = frame.f_back
        return tuple(found)

    def _count(self, what: str, most: int, true: Optional[int], assumed: bool) -> int:
        if true is None and self._most_selected is not None:
            what, most = "the gradient of masked_scatter", min(most, self._most_selected)
            true = most if self._selects_all else None
        if true is None or assumed:
            self.note(what)
        return max(int(most * self._fraction + 0.5), min(most, 1)) if true is None else true

    # --- the operators; shapes as those of torch ---

    def _nonzero(self, tensor: Any) -> Any:
        values = self._known.of(tensor)
        found = None if values is None else values.held.nonzero()
        true = None if found is None else len(found)
        count = self._count("nonzero", tensor.numel(), true, values is not None and values.assumed)
        torch = self._torch
        result = torch.empty((tensor.dim(), count), dtype=torch.long, device=tensor.device).t()
        if found is not None and values is not None:
            self._known.remember(result, found, values.assumed)
        elif tensor.numel() <= MOST:  # loops over what they hold must come to an end
            self._known.remember(result, torch.ones(tensor.shape).nonzero()[:count], assumed=True)
        return result

    def _where(self, original: Any, *arguments: Any, **options: Any) -> Any:
        """With a condition alone it is `nonzero`, whose columns are then known where that is."""
        if len(arguments) == 1 and not options and arguments[0].is_cuda and arguments[0].dim():
            return tuple(arguments[0].nonzero().unbind(1))
        return original(*arguments, **options)

    def _unique2(
        self, tensor: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
    ) -> Any:
        return self._unique("unique", tensor, None, return_inverse, return_counts, sort=True)

    def _unique_dim(
        self,
        tensor: Any,
        dim: int,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
    ) -> Any:
        return self._unique("unique", tensor, dim, return_inverse, return_counts, sort=True)

    def _unique_consecutive(
        self,
        tensor: Any,
        return_inverse: bool = False,
        return_counts: bool = False,
        dim: Optional[int] = None,
    ) -> Any:
        return self._unique("unique_consecutive", tensor, dim, return_inverse, return_counts, sort=False)

    def _unique(
        self, what: str, tensor: Any, dim: Optional[int], inverse: bool, counts: bool, sort: bool
    ) -> Tuple[Any, Any, Any]:
        torch = self._torch
        values = self._known.of(tensor)
        function = torch.unique if sort else torch.unique_consecutive
        true = None if values is None else function(values.held, dim=dim)
        most = tensor.numel() if dim is None else tensor.shape[dim]
        length = None if true is None else true.shape[0 if dim is None else dim]
        count = self._count(what, most, length, values is not None and values.assumed)
        if sort and dim is None:
            torch.sort(tensor.reshape(-1))  # what the operator itself takes for a moment
        shape = [count] if dim is None else [*tensor.shape]
        if dim is not None:
            shape[dim] = count
        result = tensor.new_empty(shape)
        if true is not None and values is not None:
            self._known.remember(result, true, values.assumed)
        integers = {"dtype": torch.long, "device": tensor.device}
        places = torch.empty(tensor.shape if dim is None else [most], **integers) if inverse else None
        empty = torch.empty(0, **integers)
        return (
            result,
            places if places is not None else empty,
            torch.empty(count, **integers) if counts else empty.clone(),
        )

    def _repeat_interleave(self, repeats: Any, output_size: Optional[int] = None) -> Any:
        torch = self._torch
        if output_size is None:
            values = self._known.of(repeats)
            true = None if values is None else int(values.held.sum())
            output_size = self._count(
                "repeat_interleave", repeats.numel(), true, values is not None and values.assumed
            )
        torch.cumsum(repeats, 0)
        return torch.empty(output_size, dtype=repeats.dtype, device=repeats.device)

    def _masked_scatter(
        self, original: Any, tensor: Any, mask: Any, source: Any, *arguments: Any, **options: Any
    ) -> Any:
        """How many elements a known mask selects, for its gradient: there, the mask is another object."""
        if mask.is_cuda and source.requires_grad:
            values = self._known.of(mask)
            place = (mask.data_ptr(), tuple(source.shape))
            self._scattered.pop(place, None)
            if values is not None and not values.assumed:
                repeated = max(tensor.numel() // max(mask.numel(), 1), 1)
                self._scattered[place] = int(values.held.sum()) * repeated
        return original(tensor, mask, source, *arguments, **options)

    def _masked_scatter_backward(self, gradient: Any, mask: Any, sizes: Any) -> Any:
        """The gradient of what was scattered: no more is selected than that had elements."""
        torch = self._torch
        most = 1
        for size in sizes:
            most *= int(size)
        true = self._scattered.get((mask.data_ptr(), tuple(int(size) for size in sizes)))
        self._selects_all = true is not None
        self._most_selected = most if true is None else min(true, most)
        try:
            selected = gradient.masked_select(mask)
        finally:
            self._most_selected = None
        if selected.numel() < most:
            selected = torch.cat([selected, selected.new_zeros(most - selected.numel())])
        return selected.view([int(size) for size in sizes])

    @staticmethod
    def _checked(*arguments: Any, **options: Any) -> None:
        """No matrix is singular."""
