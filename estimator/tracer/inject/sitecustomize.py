"""Starts gpumem's tracer in this interpreter, then lets the interpreter's own sitecustomize run.

For a pretend GPU node: this folder stands first on its PYTHONPATH; nothing else is in it. A dry run starts
the tracer without this (see `start.cpp`).
"""

import os
import sys


def _start_tracer(here: str) -> None:
    path = os.path.join(os.path.dirname(here), "start.py")
    with open(path) as file:
        code = compile(file.read(), path, "exec")
    exec(code, {"__file__": path, "configuration": os.environ["GPUMEM_TRACER"]})  # noqa: S102


def _own_sitecustomize(here: str) -> None:
    """The sitecustomize that this one hides, if there is one, must still run."""
    import importlib.machinery
    import importlib.util

    elsewhere = [path for path in sys.path if os.path.realpath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if sys.version_info >= (3, 9):
    _here = os.path.dirname(os.path.realpath(__file__))
    if os.environ.get("GPUMEM_TRACER"):
        _start_tracer(_here)
    _own_sitecustomize(_here)
