"""Modules of the user that are named as ones of the standard library, which the tracer has imported before.

Python finds `json.py` beside a script before its own `json`, unless that is imported already.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import FrozenSet, List, Optional, Set


def give_way(known: FrozenSet[str], argv: List[str]) -> None:
    """Forgets what the tracer imported (all but `known`) where the user's program has a module of that name.

    The tracer keeps its own; so all of it is loaded first.
    """
    imported = {name.partition(".")[0] for name in set(sys.modules) - known} - {__package__}
    shadowed = imported & {name for folder in _folders(argv) for name in _modules_in(folder)}
    if not shadowed:
        return
    here = os.path.dirname(os.path.realpath(__file__))
    for name in sorted(_modules_in(here) - {"__init__", "start", "inject"}):
        importlib.import_module("%s.%s" % (__package__, name))
    for name in set(sys.modules) - known:
        if name.partition(".")[0] in shadowed:
            del sys.modules[name]


def _folders(argv: List[str]) -> List[str]:
    """Where the program looks for modules before it looks into the standard library."""
    found = [] if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = _folder(argv)
    return [folder for folder in found if folder] + ([] if own is None else [own])


def _folder(argv: List[str]) -> Optional[str]:
    """Where the program looks for modules first; None if it looks nowhere but at what is installed."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return None
    words = argv[1:]
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option[1:2] in ("c", "m") or option == "-":
            return os.getcwd()
        if option in ("-W", "-X", "--check-hash-based-pycs") and words:
            words.pop(0)
    return os.path.dirname(os.path.realpath(words[0])) if words else os.getcwd()


def _modules_in(folder: str) -> Set[str]:
    found: Set[str] = set()
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        if name.endswith((".py", ".so")):
            found.add(name.partition(".")[0])
        elif os.path.isfile(os.path.join(folder, name, "__init__.py")):
            found.add(name)
    return found
