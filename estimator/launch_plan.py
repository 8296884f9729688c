"""The launch plan of a job: which programs its batch script starts, how, and what of it is skipped.

Made from what a dry run leaves behind: a file of each Python program (`tracer/plan.py`) and of each command
that a stand-in answered (`shims.py`). Both are written in the sandbox, so nothing in them is trusted.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from estimator import launchers, secrets, starter
from estimator.batch_script import BatchScript
from estimator.layout import Layout
from estimator.trace import printable

MOST_PROGRAMS = 1000
MOST_BYTES = 4 * 1024**2  # of one file
FRAMEWORK = "PyTorch"

_Text = Annotated[str, Field(max_length=200_000), AfterValidator(printable)]
_Short = Annotated[str, Field(max_length=4096), AfterValidator(printable)]


class PlanError(Exception):
    """What the dry run left behind is no plan; the text says why."""


class _Record(BaseModel):
    """A Python program, as `tracer/plan.py` writes it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    argv: Annotated[tuple[_Text, ...], Field(min_length=1, max_length=1000)]
    cwd: _Short
    executable: _Short
    prefix: _Short
    python: _Short
    environment: Annotated[dict[_Short, _Short], Field(max_length=500)] = {}
    configuration: Annotated[str, Field(max_length=100_000)] = ""
    started: Annotated[int, Field(ge=0)]
    framework: _Short | None = None
    framework_version: _Short | None = None
    error: _Short | None = None


@dataclass(frozen=True)
class Program:
    """A Python program that the job starts.

    `command` is what runs, the launchers taken off; `via` names them from the outermost on (`srun`,
    `torchrun`). `ranks` processes of it run in all. `environment` is what the script changed in it.
    `framework` is None if none was imported; `error` ended it before that.
    """

    command: tuple[str, ...]
    interpreter: str
    python: str
    cwd: str
    framework: str | None
    framework_version: str | None
    ranks: int = 1
    via: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Skipped:
    """A command that the dry run answered in the place of the real one."""

    command: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class LaunchPlan:
    """What a job runs; `trains` tells whether any of it uses PyTorch."""

    name: str
    cwd: Path
    interpreter: tuple[str, ...]
    options: Mapping[str, str]
    layout: Layout
    programs: tuple[Program, ...]
    skipped: tuple[Skipped, ...]
    problems: tuple[str, ...]

    @property
    def trains(self) -> bool:
        """Whether any program imports PyTorch."""
        return any(program.framework == FRAMEWORK for program in self.programs)

    def with_names(self, folder: str, instead: str) -> LaunchPlan:
        """The plan with commands that name files in `folder`, where a copy lay, naming those in `instead`."""

        def named(command: Sequence[str]) -> tuple[str, ...]:
            return tuple(word.replace(folder, instead) for word in command)

        return replace(
            self,
            programs=tuple(replace(one, command=named(one.command)) for one in self.programs),
            skipped=tuple(replace(one, command=named(one.command)) for one in self.skipped),
        )


def read(
    folder: Path,
    name: str,
    cwd: Path,
    script: BatchScript | None,
    layout: Layout,
    problems: Sequence[str] = (),
) -> LaunchPlan:
    """The plan from the files in `folder`; `problems` tell how the dry run itself ended.

    Raises:
        PlanError: a file was not written by a program of ours.
    """
    records = sorted(
        (_record(path) for path in _files(folder, "program-*.json")), key=lambda one: one.started
    )
    programs = [_program(record, layout) for record in records]
    return LaunchPlan(
        name=name,
        cwd=cwd,
        interpreter=script.interpreter if script else (),
        options=script.options if script else {},
        layout=layout,
        programs=_merged(programs),
        skipped=tuple(dict.fromkeys(_skipped(path) for path in _files(folder, "skipped-*"))),
        problems=tuple(printable(problem) for problem in problems),
    )


def _files(folder: Path, pattern: str) -> list[Path]:
    paths = sorted(folder.glob(pattern), key=lambda path: (path.lstat().st_mtime_ns, path.name))
    if len(paths) > MOST_PROGRAMS:
        raise PlanError(f"the job starts more than {MOST_PROGRAMS} programs")
    for path in paths:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_BYTES:
            raise PlanError(f"{path.name}: not a file that a program of the dry run has written")
    return paths


def _record(path: Path) -> _Record:
    try:
        return _Record.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise PlanError(f"{path.name}: {first['msg']}") from None


def _program(record: _Record, layout: Layout) -> Program:
    environment = dict(record.environment)
    via: list[str] = []
    ranks = 1
    if "SLURM_STEP_ID" in environment:
        via.append("srun")
        ranks = _count(environment.get("SLURM_STEP_NUM_TASKS"))
    elif "OMPI_COMM_WORLD_SIZE" in environment:
        via.append("mpirun")
        ranks = _count(environment["OMPI_COMM_WORLD_SIZE"])
    command = tuple(launchers.program_words(record.argv))
    launched = launchers.understand(record.argv, launchers.configured(record.configuration))
    if launched is not None:
        via.append(launched.launcher)
        ranks = launched.nodes * (launched.per_node or layout.gpus)
        module = ("-m",) if launched.is_module else ()
        command = (*module, launched.program, *launched.arguments)
    elif "RANK" in environment and "WORLD_SIZE" in environment:
        ranks = max(ranks, _count(environment["WORLD_SIZE"]))
    python = () if launched is not None and launched.is_command else (PurePath(record.argv[0]).name,)
    return Program(
        command=_without_secrets((*python, *command)),
        interpreter=record.executable,
        python=record.python,
        cwd=record.cwd,
        framework=record.framework,
        framework_version=record.framework_version,
        ranks=ranks,
        via=tuple(via),
        environment=_of_the_script(environment),
        error=record.error,
    )


_SET_BY_US = ("SLURM_", "OMPI_COMM_", "PMI_", "MPI_LOCAL")


def _of_the_script(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what the stand-ins set, and what they add to LD_PRELOAD in a container image."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_SET_BY_US)}
    preloaded = kept.pop("LD_PRELOAD", "").split(":")
    if own := [
        library for library in preloaded if library and PurePath(library).name != starter.LIBRARY.name
    ]:
        kept["LD_PRELOAD"] = ":".join(own)
    return kept


def _merged(programs: Sequence[Program]) -> tuple[Program, ...]:
    """Each program once, in order, without the interpreters that only handed over to another (`exec`)."""
    seen: dict[tuple[object, ...], Program] = {}
    for program in programs:
        seen.setdefault((program.command, program.cwd, program.interpreter, program.via), program)
    return tuple(seen.values())


def _skipped(path: Path) -> Skipped:
    words = path.read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    if len(words) < 2:
        raise PlanError(f"{path.name}: is cut short")
    why, *command = (printable(word) for word in words)
    return Skipped(_without_secrets(command), why)


def _without_secrets(command: Sequence[str]) -> tuple[str, ...]:
    hidden = secrets.of_arguments(command)
    return tuple(secrets.hide(word, hidden) for word in command)


def _count(text: str | None) -> int:
    return int(text) if text and text.isdigit() and len(text) < 6 and int(text) else 1


def to_json(plan: LaunchPlan) -> dict[str, object]:
    """The plan as the JSON object of `gpumem explain --json`."""
    return {
        "name": plan.name,
        "cwd": str(plan.cwd),
        "interpreter": list(plan.interpreter),
        "options": dict(plan.options),
        "nodes": plan.layout.nodes,
        "tasks": plan.layout.tasks,
        "gpus_per_node": plan.layout.gpus,
        "programs": [
            {
                "command": list(program.command),
                "interpreter": program.interpreter,
                "python": program.python,
                "cwd": program.cwd,
                "framework": program.framework,
                "framework_version": program.framework_version,
                "ranks": program.ranks,
                "via": list(program.via),
                "environment": dict(program.environment),
                "error": program.error,
            }
            for program in plan.programs
        ],
        "skipped": [{"command": list(one.command), "why": one.why} for one in plan.skipped],
        "problems": list(plan.problems),
    }


def shown(command: Sequence[str]) -> str:
    """A command as one would type it; long arguments (code) are cut."""
    return " ".join(shlex.quote(word if len(word) <= 60 else f"{word[:57]}...") for word in command)
