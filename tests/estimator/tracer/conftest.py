"""The tracer as a traced interpreter has it: loaded by path, under its private name; and programs under it."""

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRACER = ROOT / "estimator" / "tracer"
LIBRARY = ROOT / "estimator" / "fake_cuda" / "lib" / "libgpumem_cuda.so"
GPU = {
    "name": "NVIDIA A100 80GB PCIe",
    "uuid": "GPU-00000000-0000-0000-0000-000000000000",
    "memory_bytes": 80 * 2**30,
    "context_bytes": 2**29,
    "compute_capability": [8, 0],
    "sm_count": 108,
    "index": 0,
}


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


@pytest.fixture
def traced(tmp_path):
    """Runs a program under the tracer: (completed process, trace or None)."""

    def run(
        program: str, steps: int = 3, settings: dict | None = None, on_node: bool = False, **environment: str
    ):
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        (tmp_path / "tracer.json").write_text(
            json.dumps(
                {
                    "library": str(LIBRARY),
                    "devices": [GPU],
                    "enforce_limit": False,
                    "node_dir": None,
                    "trace": None
                    if on_node
                    else {"out_dir": str(out), "steps": steps, "max_events": 1_000_000} | (settings or {}),
                    "values": on_node,
                }
            )
        )
        script = tmp_path / "train.py"
        script.write_text(program)
        done = subprocess.run(
            [sys.executable, script],
            env=os.environ
            | {"PYTHONPATH": str(TRACER / "inject"), "GPUMEM_TRACER": str(tmp_path / "tracer.json")}
            | environment,
            capture_output=True,
            text=True,
            timeout=100,
            cwd=tmp_path,
        )
        traces = [json.loads(path.read_text()) for path in out.iterdir()]
        assert len(traces) <= 1
        return done, traces[0] if traces else None

    return run
