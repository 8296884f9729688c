"""The tracer's start, run as bare code; `configuration` (the path of a JSON file) is given by who runs it."""

import importlib.util
import os
import sys

NAME = "_gpumem_tracer"


def start(configuration: str) -> None:
    """Loads the package that this file lies in under its private name, once, and starts it."""
    if NAME in sys.modules or sys.version_info < (3, 9):
        return
    folder = os.path.dirname(os.path.realpath(__file__))
    spec = importlib.util.spec_from_file_location(
        NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    module.start(configuration)


start(globals()["configuration"])
