"""Code of the user that runs without gradients, as evaluations do, and that is still ahead."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from typing import Any, Dict, List, Set, Tuple

from .ahead import ahead
from .inputs import is_installed

SWITCHES = ("no_grad", "inference_mode")
MAX_FILES = 1000
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
        """File and line of the places that were not entered, and that the caller may still come to."""
        modules = list(sys.modules.values())
        paths = {path for module in modules if isinstance(path := getattr(module, "__file__", None), str)}
        files = [file for file in sorted(paths) if not is_installed(file)]
        places = [
            (file, begin)
            for file in files
            for begin, end in _places(file)
            if not any((file, line) in self._entered for line in range(begin, end + 1))
        ]
        lines = ahead(sys._getframe(1), files[:MAX_FILES]) if places else []
        return [
            {"file": file, "line": line}
            for file, line in places
            if any(file == where and first <= line <= last for where, first, last in lines)
        ]


@functools.lru_cache(maxsize=None)
def _places(file: str) -> List[Tuple[int, int]]:
    """First and last line of what switches gradients off in a file: a `with`, or a function's decorators."""
    text = "".join(linecache.getlines(file))
    if not any(name in text for name in SWITCHES):
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    found: List[Tuple[int, int]] = []
    node: Any
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            if any(_switches(item.context_expr) for item in node.items):
                found.append((node.lineno, node.body[0].lineno))
        elif any(_switches(decorator) for decorator in getattr(node, "decorator_list", ())):
            found.append((node.decorator_list[0].lineno, node.lineno))
    return found


def _switches(expression: Any) -> bool:
    called = expression.func if isinstance(expression, ast.Call) else expression
    name = getattr(called, "attr", None) or getattr(called, "id", None)
    return name in SWITCHES
