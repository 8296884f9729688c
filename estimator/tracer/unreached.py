"""Code of the user that runs without gradients, as evaluations do, and that was not reached."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from typing import Any, Dict, Iterator, List, Set, Tuple

from .inputs import is_installed

SWITCHES = ("no_grad", "inference_mode")
_Place = Tuple[str, int]


class Gradless:
    """Notes each place where `torch.no_grad` or `torch.inference_mode` is entered."""

    def __init__(self) -> None:
        self._entered: Set[_Place] = set()

    def watch(self) -> None:
        """Starts noting."""
        import torch

        for name in SWITCHES:
            switch = getattr(torch, name)
            switch.__enter__ = self._noting(switch.__enter__)

    def _noting(self, enter: Any) -> Any:
        entered = self._entered

        @functools.wraps(enter)
        def __enter__(switch: Any) -> Any:
            frame = sys._getframe(1)
            code = frame.f_code
            if code.co_filename.endswith("_contextlib.py"):  # a decorator: the place is the function's
                code = getattr(frame.f_locals.get("func"), "__code__", code)
                entered.add((code.co_filename, code.co_firstlineno))
            else:
                entered.add((code.co_filename, frame.f_lineno))
            return enter(switch)

        return __enter__

    def unreached(self) -> List[Dict[str, Any]]:
        """File and line of the places in the user's modules that were not entered."""
        files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        return [
            {"file": file, "line": begin}
            for file in sorted(file for file in files if isinstance(file, str) and not is_installed(file))
            for begin, end in _places(file)
            if not any((file, line) in self._entered for line in range(begin, end + 1))
        ]


def _places(file: str) -> Iterator[Tuple[int, int]]:
    """First and last line of what switches gradients off in a file: a `with`, or a function's decorators."""
    text = "".join(linecache.getlines(file))
    if not any(name in text for name in SWITCHES):
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    node: Any
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            if any(_switches(item.context_expr) for item in node.items):
                yield node.lineno, node.body[0].lineno
        elif any(_switches(decorator) for decorator in getattr(node, "decorator_list", ())):
            yield node.decorator_list[0].lineno, node.lineno


def _switches(expression: Any) -> bool:
    called = expression.func if isinstance(expression, ast.Call) else expression
    name = getattr(called, "attr", None) or getattr(called, "id", None)
    return name in SWITCHES
