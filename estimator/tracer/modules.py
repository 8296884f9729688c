"""In which module a forward pass is: noted whenever a call of a `torch.nn.Module` begins or ends."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Tuple

MOST_MOMENTS = 100_000  # loops over thousands of cells say nothing more
OUTSIDE = -1


class ModuleCalls:
    """The innermost module at each moment, by its name within the outermost one (`model.layers.3.mlp`)."""

    def __init__(self, note: Callable[[], None]) -> None:
        """`note` puts a moment into the memory history."""
        self._note = note
        self._numbers: Dict[str, int] = {}
        self._roots: Dict[int, Tuple[Any, Dict[int, str]]] = {}  # nothing is kept alive by it
        self._inner: Dict[int, str] = {}
        self._stack: List[int] = []
        self.moments: List[int] = []  # the number of the module that goes on from there

    @property
    def names(self) -> List[str]:
        """Names by number; the outermost module's is empty."""
        return list(self._numbers)

    def enter(self, module: Any) -> bool:
        """A call begins; False if it is not noted, and then its end must not be told."""
        if len(self.moments) >= MOST_MOMENTS:
            return False
        if not self._stack:
            self._inner = self._names_within(module)
        name = self._inner.get(id(module))
        if name is None:  # made within the call, or no submodule: counts for the one that calls it
            return False
        number = self._numbers.setdefault(name, len(self._numbers))
        self._stack.append(number)
        self._at(number)
        return True

    def leave(self) -> None:
        """The innermost call that was noted ends."""
        self._stack.pop()
        self._at(self._stack[-1] if self._stack else OUTSIDE)

    def _at(self, number: int) -> None:
        self._note()
        self.moments.append(number)

    def _names_within(self, root: Any) -> Dict[int, str]:
        known = self._roots.get(id(root))
        if known is None or known[0]() is not root:
            names = {id(module): name for name, module in root.named_modules()}
            known = self._roots[id(root)] = (weakref.ref(root), names)
        return known[1]
