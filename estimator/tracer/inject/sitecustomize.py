"""Starts gpumem's tracer in this interpreter, then lets the interpreter's own sitecustomize run.

This folder stands first on PYTHONPATH of a traced run (and of a pretend GPU node); nothing else is in it.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _own_sitecustomize(here: str) -> None:
    """The sitecustomize that this one hides, if there is one, must still run."""
    elsewhere = [path for path in sys.path if os.path.realpath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _start_tracer(here: str) -> None:
    folder = os.path.dirname(here)
    spec = importlib.util.spec_from_file_location(
        "_gpumem_tracer", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.start(os.environ["GPUMEM_TRACER"])


_here = os.path.dirname(os.path.realpath(__file__))
if os.environ.get("GPUMEM_TRACER"):
    _start_tracer(_here)
_own_sitecustomize(_here)
