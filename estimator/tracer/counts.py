"""Whether a program makes a size or a count of a number that it reads back: `range(int(n))`, `x[:n.item()]`.

A number that is made up does no harm where it is only printed or averaged. Where a loop, a slice or the shape
of a tensor is made of it, the estimate hangs on it. Python does not tell what becomes of an `int`, so the
source of the function that read it is followed instead: from the call, through names, arithmetic and returned
values, to such a use. What cannot be followed (an attribute of an object from another file) is lost.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import sys
from types import CodeType, FrameType
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Set, Tuple

CALLERS = 4  # functions that a value is followed through when it is returned
LONGEST = 20_000  # lines of a file that is looked at

SIZES = frozenset((
    "range", "trange", "islice", "repeat", "repeat_interleave", "expand", "view", "reshape", "unflatten",
    "tile", "zeros", "ones", "empty", "full", "rand", "randn", "arange", "linspace", "eye", "randperm",
    "multinomial", "new_zeros", "new_ones", "new_empty", "new_full", "split", "chunk", "narrow", "pad",
    "one_hot", "interpolate", "resize", "resize_", "sample", "choices", "topk", "Linear", "Embedding",
    "Parameter", "bytearray",
))  # fmt: skip
PASSING = frozenset((
    "int", "float", "max", "min", "abs", "round", "sum", "ceil", "floor", "list", "tuple", "sorted",
    "reversed", "enumerate", "zip", "tqdm", "sqrt", "clip", "index",
))  # fmt: skip
READERS = frozenset(("item", "int", "float", "tolist", "round", "index", "range"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Uses:
    """Answers for one process; what was found out about a place is kept."""

    def __init__(self) -> None:
        self._files: Dict[str, Optional[_File]] = {}
        self._known: Dict[Tuple[CodeType, int], _Found] = {}

    def are_counts(self, frame: Optional[FrameType]) -> bool:
        """Whether a size or a count is made of what the program reads in `frame` just now."""
        readers = READERS
        for _ in range(CALLERS):
            if frame is None:
                return False
            place = (frame.f_code, frame.f_lasti)
            found = self._known.get(place)
            if found is None:
                found = self._known[place] = self._found(frame, readers)
            if found.counts or not found.is_returned:
                return found.counts
            readers = frozenset((frame.f_code.co_name,))
            frame = frame.f_back
        return False

    def _found(self, frame: FrameType, readers: FrozenSet[str]) -> _Found:
        try:
            file = self._file(frame.f_code.co_filename)
            return _Found(False, False) if file is None else file.follow(frame, readers)
        except (RecursionError, ValueError, AttributeError):
            return _Found(False, False)

    def _file(self, name: str) -> Optional[_File]:
        if name not in self._files:
            lines = linecache.getlines(name)
            try:
                tree = ast.parse("".join(lines)) if 0 < len(lines) <= LONGEST else None
            except (SyntaxError, ValueError):
                tree = None
            self._files[name] = None if tree is None else _File(tree)
        return self._files[name]


class _Found(NamedTuple):
    counts: bool
    is_returned: bool  # what the calling function does with it has to be looked at, too


class _File:
    """The syntax tree of one file, with the way up."""

    def __init__(self, tree: ast.AST) -> None:
        self._tree = tree
        self._above: Dict[Any, Any] = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }

    def follow(self, frame: FrameType, readers: FrozenSet[str]) -> _Found:
        """Where the values go that `frame` reads just now, by a call of one of `readers`."""
        todo = self._readings(frame, readers)
        seen: Set[Any] = set()
        is_returned = False
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            above = self._above.get(node)
            if _is_size(node, above):
                return _Found(True, False)
            is_returned = is_returned or isinstance(above, (ast.Return, ast.Yield))
            todo += self._next(node, above)
        return _Found(False, is_returned)

    def _readings(self, frame: FrameType, readers: FrozenSet[str]) -> List[Any]:
        """The expressions that are evaluated; where Python does not tell positions, those of the line."""
        where = _position(frame)
        found = []
        for node in ast.walk(self._tree):
            if not isinstance(node, (ast.Call, ast.Subscript)) or node.end_lineno is None:
                continue
            if where is not None:
                if (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == where:
                    found.append(node)
            elif node.lineno <= frame.f_lineno <= node.end_lineno and _called(node) in readers:
                found.append(node)
        return found

    def _next(self, node: Any, above: Any) -> Iterator[Any]:
        """The expressions that hold what `node` holds."""
        if isinstance(above, ast.Call) and node is not above.func:
            if _called(above) in PASSING:
                yield above
            else:
                yield from self._parameter(above, node)
        elif isinstance(above, ast.keyword):
            call = self._above[above]
            yield from self._parameter(call, above)
            if _called(call) in PASSING:
                yield call
        elif isinstance(above, (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Starred,
                                ast.Tuple, ast.List, ast.ListComp, ast.GeneratorExp)):  # fmt: skip
            if not (isinstance(above, ast.IfExp) and node is above.test):
                yield above
        elif isinstance(above, ast.Subscript):
            if node is above.value:
                yield above
        elif isinstance(above, ast.NamedExpr):
            yield above
            yield from self._uses(above.target)
        elif isinstance(above, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            for target in above.targets if isinstance(above, ast.Assign) else [above.target]:
                yield from self._uses(target)
        elif isinstance(above, (ast.For, ast.comprehension)) and node is above.iter:
            yield from self._uses(above.target)

    def _uses(self, target: Any) -> Iterator[Any]:
        """Where what is stored in `target` is loaded: names in the same function, attributes in the file."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                yield from self._uses(element)
        elif isinstance(target, (ast.Starred, ast.Subscript)):
            yield from self._uses(target.value)
        elif isinstance(target, ast.Name):
            yield from _loads(self._scope(target), ast.Name, "id", target.id)
        elif isinstance(target, ast.Attribute):
            yield from _loads(self._tree, ast.Attribute, "attr", target.attr)

    def _scope(self, node: Any) -> Any:
        while node is not self._tree and not isinstance(node, FUNCTIONS):
            node = self._above[node]
        return node

    def _parameter(self, call: Any, argument: Any) -> Iterator[Any]:
        """Where a function of the same file uses what it is given."""
        name = _called(call)
        for function in ast.walk(self._tree):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            is_method = isinstance(call.func, ast.Attribute)
            if function.name != name and name != _class_of(self._above[function], function.name):
                continue
            names = [one.arg for one in (*function.args.args, *function.args.kwonlyargs)]
            if isinstance(argument, ast.keyword):
                given = argument.arg
            else:
                skipped = names[:1] == ["self"] and (is_method or function.name == "__init__")
                place = call.args.index(argument) + skipped if argument in call.args else len(names)
                given = names[place] if place < len(names) else None
            if given in names:
                yield from _loads(function, ast.Name, "id", given)


def _is_size(node: Any, above: Any) -> bool:
    if isinstance(above, ast.keyword):
        return above.arg in ("size", "num_samples", "output_size", "total_length", "num_classes", "minlength")
    if isinstance(above, ast.Call):
        return node is not above.func and _called(above) in SIZES
    if isinstance(above, ast.Slice):
        return True
    if isinstance(above, ast.While):
        return node is above.test
    if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Mult):
        return any(isinstance(side, (ast.List, ast.Tuple)) for side in (above.left, above.right))
    return False


def _called(node: Any) -> Optional[str]:
    function = getattr(node, "func", None)
    return getattr(function, "attr", None) or getattr(function, "id", None)


def _class_of(node: Any, method: str) -> Optional[str]:
    """A class is called by its name, its `__init__` is what runs."""
    return node.name if isinstance(node, ast.ClassDef) and method == "__init__" else None


def _loads(within: Any, kind: Any, field: str, name: str) -> List[Any]:
    return [
        node
        for node in ast.walk(within)
        if isinstance(node, kind) and getattr(node, field) == name and isinstance(node.ctx, ast.Load)
    ]


def _position(frame: FrameType) -> Optional[Tuple[int, int, int, int]]:
    """First and last line, first and last column of what is evaluated; Python 3.11 and newer tell."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None:
        return None
    line, last, column, end = next(itertools.islice(positions(), frame.f_lasti // 2, None), (None,) * 4)
    if line is None or last is None or column is None or end is None:
        return None
    return line, last, column, end


def reading_frame(own: Tuple[str, ...]) -> Optional[FrameType]:
    """The innermost frame of a file that does not begin with one of `own`."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(own):
        frame = frame.f_back
    return frame
