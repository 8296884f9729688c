"""Batch scripts in the styles of public repositories, and what they start."""

from __future__ import annotations

import os
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.corpus import site
from estimator import explain_cli
from estimator.catalog import load
from estimator.dry_run import SPOOL, Launch
from estimator.launch_plan import LaunchPlan, Program
from settings import Estimate
from testbed.cluster import make_folder

FOLDER = Path(__file__).parent / "corpus"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
OF_IMAGES = ("apptainer_nv", "singularity_srun")  # root cannot start any; see test_apptainer.py
LIMITS = Estimate(timeout_s=60)
GPU = load(LIMITS.gpus_file).find("a100-80gb")


@pytest.fixture(scope="module")
def place() -> Iterator[site.Site]:
    """A project, `project`, at a site that has conda, uv and so on.

    Real PyTorch is not needed here, since a plan ends at its import; tests/estimator/test_launch_plan.py has
    it.
    """
    folder = make_folder("gpumem-corpus-")
    shutil.copytree(FOLDER / "project", folder / "project")
    (folder / "project" / "pytorch.sif").mkdir()  # an image may be a folder
    yield site.build(folder / "site")
    shutil.rmtree(folder)


def plan_of(script: Path, place: site.Site) -> LaunchPlan:
    launch = Launch.of_script(script, ())
    project = place.folder.parent / "project"
    where = project / launch.script.chdir if launch.script and launch.script.chdir else project
    launch = Launch.of_script(script, (), where)
    return explain_cli.make(launch, GPU, LIMITS, place.environment)


def as_expected(plan: LaunchPlan, place: site.Site) -> dict[str, Any]:
    """The plan in the form of the files, with every variable that the script changed."""
    root = place.folder.parent / "project"

    def of_program(program: Program) -> dict[str, Any]:
        return {
            "command": here(shlex.join(program.command)),
            "via": list(program.via),
            "ranks": program.ranks,
            "framework": program.framework or "",
            "cwd": str(Path(program.cwd).relative_to(root)),
            "environment": {name: here(value) for name, value in program.environment.items()},
        }

    def here(text: str) -> str:
        text = text.replace(str(FOLDER), "CORPUS").replace(str(place.folder), "SITE").replace(SPOOL, "SPOOL")
        return text.replace(str(root), "PROJECT")

    return {
        "layout": [plan.layout.nodes, plan.layout.tasks, plan.layout.gpus],
        "problem": bool(plan.problems),
        "skipped": [here(shlex.join(one.command)) for one in plan.skipped],
        "program": sorted((of_program(one) for one in plan.programs), key=lambda one: str(one["command"])),
    }


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_plan(script: Path, place: site.Site) -> None:
    if script.stem in OF_IMAGES and os.geteuid() == 0:
        pytest.skip("root cannot start images in a dry run")
    expected = tomllib.loads(script.with_suffix(".toml").read_text())
    plan = plan_of(script, place)
    found = as_expected(plan, place)
    for program, wanted in zip(found["program"], expected.get("program", []), strict=False):
        environment = wanted.get("environment", {})
        program["environment"] = {name: program["environment"].get(name) for name in environment}
    assert found == {"program": [], "skipped": [], "problem": False, **expected}, plan.problems
