"""The tracer's start, run as bare code; `configuration` (the path of a JSON file) is given by who runs it."""

import sys

NAME = "_gpumem_tracer"


def start(configuration: str) -> None:
    """Loads the package that this file lies in under its private name, once, and starts it."""
    known = frozenset(sys.modules)
    import importlib.util
    import os

    folder = os.path.dirname(os.path.realpath(__file__))
    spec = importlib.util.spec_from_file_location(
        NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    module.start(configuration, known)


def _with_own_library(configuration: str) -> None:
    """A module of the user may be named as one of the standard library, in a folder of PYTHONPATH."""
    path = sys.path[:]
    libraries = (sys.base_prefix + "/lib", sys.base_exec_prefix + "/lib")
    sys.path[:] = [place for place in path if place.startswith(libraries)] or path
    try:
        start(configuration)
    finally:
        sys.path[:] = path


if NAME not in sys.modules and sys.version_info >= (3, 9):
    _with_own_library(globals()["configuration"])
