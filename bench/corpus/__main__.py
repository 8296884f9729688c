"""Makes launch plans of other people's batch scripts and tells how many have one, and why not.

    python -m bench.corpus FOLDER... [--only GLOB] [--json] [--plans]

Their programs, environments and data need not be there: stand-ins take their place (site.py, lenient.py).
Each script runs in the sandbox of `gpumem explain`. Exit status: 0, or 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.corpus import lenient, site
from estimator import batch_script, explain_cli, launch_plan, sandbox
from estimator.batch_script import NotABatchScript
from estimator.catalog import GPU, load
from estimator.dry_run import Launch
from estimator.launch_plan import LaunchPlan, Program
from settings import Estimate

LIMITS = Estimate(timeout_s=30)
MODEL = "a100-80gb"
LARGEST = 1024**2  # bytes of a script
# A line that starts a Python program, as far as a line tells.
STARTS = re.compile(
    r"^(?!\s*(#|echo|module|ml|source|conda|pip|export PATH)\b)[^#\n]*?"
    r"(\bpython[0-9.]*\s+(?!-m\s+(pip|venv|http|json)|-V|--version|-c\b)[-\w./${\"'~]|\btorchrun\b|"
    r"\baccelerate\s+launch\b|\bdeepspeed\s+[-\w./$]|\bpytest\b|^\s*(srun|mpirun)\b.*\.py\b)",
    re.MULTILINE,
)
# What it does depends on arguments, which nobody gives here, or it ends with a demand for a variable.
NEEDS_MORE = re.compile(r"^[^#\n]*\$(\{?[1-9@*])|(?i:must be (set|specified)|is not set)", re.MULTILINE)
TRAINING, OTHER, PROGRAM, FAILED, NONE, NEEDS, NO_PLAN = (
    "a program that imports PyTorch",
    "a program of another framework",
    "a Python program whose code is not here, or that uses no framework",
    "a Python program, but it or the script ends too early",
    "no Python program",
    "no Python program: does not start one without arguments or variables",
    "no launch plan",
)


@dataclass(frozen=True)
class Result:
    """What became of one script: `found` is one of those above, `programs` what would run."""

    script: str
    starts_python: bool
    found: str
    programs: tuple[str, ...] = ()
    layout: tuple[int, int, int] = (0, 0, 0)
    problems: tuple[str, ...] = ()


def main() -> int:
    """Runs the scripts below the folders."""
    parser = argparse.ArgumentParser(prog="bench.corpus", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="+", type=Path)
    parser.add_argument("--only", default="*", help="scripts whose path matches")
    parser.add_argument("--json", action="store_true", help="print all results as JSON")
    parser.add_argument("--plans", action="store_true", help="print the plan of each script")
    options = parser.parse_args()
    if missing := [str(folder) for folder in options.folder if not folder.is_dir()]:
        print(f"corpus: no such folder: {' '.join(missing)}", file=sys.stderr)
        return 2
    gpu = load(LIMITS.gpus_file).find(MODEL)
    of_folder: dict[str, list[Result]] = {}
    with tempfile.TemporaryDirectory(prefix="gpumem-corpus-") as made:
        place = site.build(Path(made) / "site", lenient.FUNCTIONS)
        lenient.add_to(site.packages_of(Path(made) / "site"))
        for folder in options.folder:
            results = of_folder[folder.name] = []
            for script in scripts(folder, options.only):
                results.append(look(script, folder, place, gpu))
                if not options.json:
                    print(_line(results[-1], options.plans), flush=True)
    if options.json:
        print(json.dumps({name: [asdict(one) for one in results] for name, results in of_folder.items()}))
    else:
        print(table(of_folder))
    return 0


def scripts(folder: Path, only: str) -> Iterator[Path]:
    """The batch scripts below a folder: files that begin with `#!` and have options that sbatch would read.

    (Those that only hand a script to sbatch have `#SBATCH` lines, too, but later.)
    """
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST:
            continue
        if fnmatch.fnmatch(str(path.relative_to(folder)), only):
            content = path.read_bytes()
            if content.startswith(b"#!") and b"\n#SBATCH" in content and _has_options(path):
                yield path


def _has_options(path: Path) -> bool:
    try:
        return bool(batch_script.read(path).options)
    except NotABatchScript:
        return True


def look(script: Path, folder: Path, place: site.Site, gpu: GPU) -> Result:
    """Makes the plan of one script, from its own folder."""
    name = str(script.relative_to(folder))
    text = script.read_text(errors="replace").replace("\\\n", " ")
    starts = STARTS.search(text) is not None
    try:
        launch = Launch.of_script(script, (), script.parent)
        start = Path(place.environment["BASH_ENV"])
        own = start.with_name("of_script.sh")
        own.write_text(start.read_text() + lenient.programs_of(text))
        plan = explain_cli.make(launch, gpu, LIMITS, place.environment | {"BASH_ENV": str(own)})
    except (NotABatchScript, launch_plan.PlanError, FileNotFoundError, sandbox.Refused) as error:
        return Result(name, starts, NO_PLAN, problems=(str(error),))
    layout = (plan.layout.nodes, plan.layout.tasks, plan.layout.gpus)
    found = _found(plan)
    if found == NONE and NEEDS_MORE.search("\n".join([text, *plan.problems])):
        found = NEEDS
    return Result(name, starts, found, tuple(map(_told, plan.programs)), layout, plan.problems)


def _found(plan: LaunchPlan) -> str:
    frameworks = {program.framework for program in plan.programs}
    if launch_plan.FRAMEWORK in frameworks:
        return TRAINING
    if frameworks - {None}:
        return OTHER
    if not plan.problems and any(map(_is_program, plan.programs)):
        return PROGRAM
    return FAILED if any(map(_is_program, plan.programs)) else NONE


def _is_program(program: Program) -> bool:
    """Whether it is more than a one-liner."""
    return len(program.command) > 1 and program.command[1] not in ("-c", "-V", "--version")


def _told(program: Program) -> str:
    by = f" [{' '.join(program.via)}]" if program.via else ""
    return (
        f"{program.ranks} x {shlex.join(program.command)}{by} -> {program.framework or program.error or '?'}"
    )


def _line(result: Result, with_plan: bool) -> str:
    mark = "" if result.starts_python else " (starts none, by its text)"
    lines = [f"{result.script}: {result.found}{mark}"]
    if with_plan:
        lines += [f"    nodes, tasks, GPUs of a node: {result.layout}"]
        lines += [f"    {program[:400]}" for program in result.programs]
    return "\n".join([*lines, *(f"    ! {problem[:300]}" for problem in result.problems)])


def table(of_folder: dict[str, list[Result]]) -> str:
    """The counts as a table in Markdown, one line for each folder.

    Found means: PyTorch or another framework is reached, or the script runs to its end and starts Python
    programs whose code is not here. It is counted among scripts that start one without being given anything.
    """
    kinds = (TRAINING, OTHER, PROGRAM, FAILED, NONE, NEEDS)
    lines = [
        "| collection | scripts | with a launch plan | start Python, by their text | "
        + " | ".join(f"{kind}" for kind in kinds)
        + " | found |",
        "| --- |" + " ---: |" * (len(kinds) + 4),
    ]
    everything = [one for results in of_folder.values() for one in results]
    for name, results in [*of_folder.items(), ("all", everything)]:
        starting = [one for one in results if one.starts_python]
        counts = collections.Counter(one.found for one in starting)
        able = len(starting) - counts[NEEDS]
        found = counts[TRAINING] + counts[OTHER] + counts[PROGRAM]
        numbers = [len(results), sum(one.found != NO_PLAN for one in results), len(starting)]
        numbers += [counts[kind] for kind in kinds]
        share = f"{100 * found / able:.1f} % of {able}" if able else "-"
        lines.append(f"| {name} | " + " | ".join(map(str, numbers)) + f" | {share} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
