"""How long a loop of the program goes on: read from its source and the names that it uses, nothing is run."""

from __future__ import annotations

import ast
import inspect
import linecache
import operator
import sys
from types import FrameType
from typing import Any, Callable, Dict, List, Optional

from .inputs import is_installed

WRAPPERS = ("tqdm", "track")  # show how far an iterable has got
RANGES = ("range", "trange")
ARITHMETIC: Dict[Any, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip


def rounds_left() -> List[int]:
    """Of the `for` loops over a `range` around what the program does just now, the innermost one first.

    Each number is what is left until that loop ends, with all rounds of the loops inside it. Only loops of
    the innermost function of the user's that has any are looked at; empty if nothing can be told.
    """
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith("<") and not is_installed(name):
            loops = _loops(frame)
            if loops:
                return _left(loops, frame)
        frame = frame.f_back
    return []


def _loops(frame: FrameType) -> List[ast.For]:
    """The loops around the line that runs, the innermost one first."""
    try:
        tree = ast.parse("".join(linecache.getlines(frame.f_code.co_filename)))
    except (SyntaxError, ValueError):
        return []
    line, begin = frame.f_lineno, frame.f_code.co_firstlineno
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For)
        and node.lineno >= begin
        and node.body[0].lineno <= line <= (node.body[-1].end_lineno or line)
    ]
    return sorted(found, key=lambda node: -node.lineno)


def _left(loops: List[ast.For], frame: FrameType) -> List[int]:
    found: List[int] = []
    left, inside = 0, 1
    for loop in loops:
        rounds = _range(loop.iter, frame)
        current = _value(loop.target, frame)
        if rounds is None or current not in rounds:
            break
        left += inside * (len(rounds) - 1 - rounds.index(current))
        inside *= len(rounds)
        found.append(left)
    return found


def _range(expression: Any, frame: FrameType) -> Optional[range]:
    if not isinstance(expression, ast.Call) or not expression.args:
        return None
    name = getattr(expression.func, "attr", None) or getattr(expression.func, "id", None)
    if name in WRAPPERS:
        return _range(expression.args[0], frame)
    values = [_value(argument, frame) for argument in expression.args]
    if name not in RANGES or not 1 <= len(values) <= 3 or not all(type(one) is int for one in values):
        return None
    return range(*values) if len(values) < 3 or values[2] else None


def _value(expression: Any, frame: FrameType) -> Any:
    """What a constant, a name, an attribute or a sum of them is; None if that is not to be told."""
    if isinstance(expression, ast.Constant):
        return expression.value
    if isinstance(expression, ast.Name):
        return frame.f_locals.get(expression.id, frame.f_globals.get(expression.id))
    if isinstance(expression, ast.Attribute):
        # a property would run code: it is found, but not asked
        return inspect.getattr_static(_value(expression.value, frame), expression.attr, None)
    if isinstance(expression, ast.BinOp) and type(expression.op) in ARITHMETIC:
        sides = [_value(expression.left, frame), _value(expression.right, frame)]
        if all(type(side) is int for side in sides) and sides[1]:
            return ARITHMETIC[type(expression.op)](*sides)
    return None
