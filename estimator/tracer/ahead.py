"""Which code of the user a program may still come to, by the source of what is on its call stack.

Ahead of a frame are the statements behind the one that it is at, and whole loops around it; with them every
function of the user that they name, and so on. Names are all that is compared: a function that is only
reached by a name made at run time is not seen.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
from types import CodeType, FrameType
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

Lines = Tuple[str, int, int]  # of a file: the first and the last one
_Code = Tuple[str, Any]  # a file, and a statement or a definition in it
_HERE = os.path.join(os.path.dirname(__file__), "")
_LIBRARY = os.path.join(os.path.dirname(ast.__file__), "")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def ahead(frame: Optional[FrameType], files: List[str]) -> List[Lines]:
    """Lines of the user's `files` that may still be run by `frame` and its callers.

    Where a library lies between two frames of the user, it may call methods of the user's classes: all of
    them are ahead. All code is, if the source of no frame is known.
    """
    trees = {file: tree for file in files for tree in [_tree(file)] if tree is not None}
    found: List[_Code] = []
    is_users = between = calls_back = False
    while frame is not None:
        file = frame.f_code.co_filename
        if file in trees:
            calls_back = calls_back or between
            is_users, between = True, False
            found += [(file, node) for node in _rest(trees[file], frame.f_code, frame.f_lineno)]
        elif is_users and not _is_neutral(file):
            between = True
        frame = frame.f_back
    if not is_users:
        return [(file, 1, sys.maxsize) for file in trees]
    defined = _defined(trees)
    if calls_back:
        found += [code for functions in defined.values() for code in functions if code[1] in _methods(trees)]
    return [(file, _first_line(node), node.end_lineno or node.lineno) for file, node in _all(found, defined)]


@functools.lru_cache(maxsize=None)
def _tree(file: str) -> Any:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _is_neutral(file: str) -> bool:
    """The standard library, PyTorch and the tracer: what they call, they were told to call."""
    torch: Any = sys.modules.get("torch")
    if file.startswith(("<", _HERE, *(os.path.join(place, "") for place in getattr(torch, "__path__", ())))):
        return True
    return file.startswith(_LIBRARY) and "-packages" + os.sep not in file


def _rest(tree: Any, code: CodeType, line: int) -> List[Any]:
    """The statements of the function with this code that are ahead of `line`."""
    if code.co_name == "<module>":
        return _behind(tree.body, line)
    this = (code.co_name, code.co_firstlineno)
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS) and (node.name, _first_line(node)) == this:
            return _behind(node.body, line)
    return []  # a lambda or a comprehension: the frame around it is on the stack as well


def _behind(body: List[Any], line: int) -> List[Any]:
    """Of statements in a row and those within them; definitions are nothing that is run."""
    for place, statement in enumerate(body):
        if _first_line(statement) <= line <= (statement.end_lineno or line):
            found = [statement] if isinstance(statement, _LOOPS) else _behind_within(statement, line)
            return found + [node for node in body[place + 1 :] if not isinstance(node, _DEFINITIONS)]
    return []


def _behind_within(statement: Any, line: int) -> List[Any]:
    """Of a `with`, `if`, `try` or `match`; behind the body of a `try` comes all the rest of it."""
    handlers = getattr(statement, "handlers", [])
    parts = [statement, *handlers, *getattr(statement, "cases", [])]
    blocks = [getattr(part, "body", []) for part in parts if isinstance(getattr(part, "body", []), list)]
    blocks += [getattr(statement, name, []) for name in ("orelse", "finalbody")]
    for place, block in enumerate(blocks):
        if block and _first_line(block[0]) <= line <= (block[-1].end_lineno or line):
            later = blocks[place + 1 :] if hasattr(statement, "finalbody") else []
            return _behind(block, line) + [node for one in later for node in one]
    return []


def _defined(trees: Dict[str, Any]) -> Dict[str, List[_Code]]:
    """The user's functions by name; who names a class makes one, and may call it."""
    found: Dict[str, List[_Code]] = {}
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, _FUNCTIONS):
                found.setdefault(node.name, []).append((file, node))
            elif isinstance(node, ast.ClassDef):
                called = [
                    one for one in _functions_of(node) if one.name in ("__init__", "__call__", "forward")
                ]
                found.setdefault(node.name, []).extend((file, one) for one in called)
    return found


def _methods(trees: Dict[str, Any]) -> Set[Any]:
    classes = (node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {function for node in classes for function in _functions_of(node)}


def _functions_of(node: Any) -> List[Any]:
    return [inner for inner in node.body if isinstance(inner, _FUNCTIONS)]


def _all(found: List[_Code], defined: Dict[str, List[_Code]]) -> Iterator[_Code]:
    """What was found, each function that it names, and what these name."""
    todo, seen = list(found), {node for _, node in found}
    named: Set[str] = set()
    while todo:
        file, code = todo.pop()
        yield file, code
        for node in ast.walk(code):
            name = getattr(node, "attr", None) or getattr(node, "id", None)
            if not isinstance(name, str) or name in named:
                continue
            named.add(name)
            for other in defined.get(name, ()):
                if other[1] not in seen:
                    seen.add(other[1])
                    todo.append(other)


def _first_line(node: Any) -> int:
    decorators = getattr(node, "decorator_list", None)
    return int(decorators[0].lineno if decorators else node.lineno)
