"""The tracer as a traced interpreter has it: loaded by path, under its private name."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

TRACER = Path(__file__).parents[3] / "estimator" / "tracer"


@pytest.fixture(scope="session", autouse=True)
def _tracer_package():
    if "_gpumem_tracer" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "_gpumem_tracer", TRACER / "__init__.py", submodule_search_locations=[str(TRACER)]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules["_gpumem_tracer"] = module
        spec.loader.exec_module(module)


@pytest.fixture(scope="session")
def elf(_tracer_package):
    return importlib.import_module("_gpumem_tracer.elf")


@pytest.fixture(scope="session")
def facades(_tracer_package):
    return importlib.import_module("_gpumem_tracer.facades")


@pytest.fixture(scope="session")
def device(_tracer_package):
    return importlib.import_module("_gpumem_tracer.device")
