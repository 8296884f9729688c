"""What a wheel holds, told by setup.py without building one."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ASK = """
import setuptools
from distutils.core import run_setup
made = run_setup("setup.py", stop_after="init")
print(*(f"package {name}" for name in made.packages), sep="\\n")
print(*(f"{folder} {file}" for folder, files in made.data_files for file in files), sep="\\n")
"""


@pytest.fixture(scope="module")
def contents() -> set[str]:
    command = [sys.executable, "-W", "ignore", "-c", ASK]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def test_a_wheel_holds_every_folder_with_code(contents: set[str]) -> None:
    tops = ("settings", "estimator", "history", "slurm_plugin", "prolog")
    folders = {file.parent.relative_to(ROOT) for top in tops for file in (ROOT / top).rglob("*.py")}
    assert {f"package {'.'.join(folder.parts)}" for folder in folders} <= contents


def test_a_wheel_holds_all_that_an_administrator_copies(contents: set[str]) -> None:
    files = {f"etc/{file.name}" for file in (ROOT / "etc").iterdir()} | {"slurm_plugin/job_submit.lua"}
    assert {f"share/gpumem {file}" for file in files} <= contents


@pytest.mark.parametrize("program", ["gpumem", "gpumem-hist", "gpumemd"])
def test_programs_tell_their_version(program: str) -> None:
    installed = Path(sys.executable).with_name(program)
    done = subprocess.run([installed, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"gpumem {version('gpumem')}\n"
