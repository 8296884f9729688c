"""Whether the code that asks an iterator for its next item is prepared for its end.

A `for` loop is; so is `next(iterator, default)`, and `next(iterator)` in a `try` that catches
`StopIteration`. Anything else counts on as many items as it was promised, and would fail.
"""

from __future__ import annotations

import ast
import dis
import linecache
from types import CodeType, FrameType
from typing import Any, Dict, Optional, Tuple

_LOOPS = ("FOR_ITER", "SEND", "YIELD_FROM", "LIST_EXTEND", "SET_UPDATE", "UNPACK_EX")
_CATCHES = ("StopIteration", "Exception", "BaseException")
_known: Dict[Tuple[CodeType, int], bool] = {}


def expects_an_end(frame: Optional[FrameType]) -> bool:
    """Whether `frame`, which asks for the next item just now, can be told that there is none."""
    if frame is None:
        return False
    key = (frame.f_code, frame.f_lasti)
    if key not in _known:
        _known[key] = _loops(frame) or _handles(frame)
    return _known[key]


def _loops(frame: FrameType) -> bool:
    name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return name.startswith(_LOOPS)


def _handles(frame: FrameType) -> bool:
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    line = frame.f_lineno
    return any(_is_prepared(node, line) for node in ast.walk(tree))


def _is_prepared(node: Any, line: int) -> bool:
    if isinstance(node, ast.Try):
        body = node.body
        within = body[0].lineno <= line <= (body[-1].end_lineno or line)
        return within and any(_catches(handler.type) for handler in node.handlers)
    if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or line):
        function = node.func
        if not isinstance(function, ast.Name):
            return False
        return (function.id == "next" and len(node.args) == 2) or function.id in ("list", "tuple", "sum")
    return False


def _catches(kind: Any) -> bool:
    if kind is None:
        return True
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(one, ast.Name) and one.id in _CATCHES for one in kinds)
