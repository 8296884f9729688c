"""`gpumem explain`: what a batch script would start, found by a dry run that stops where PyTorch begins."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from estimator.catalog import GPU
    from estimator.dry_run import Launch
    from estimator.launch_plan import LaunchPlan, Program
    from settings import Estimate as Settings

LIMIT_S = 30
COULD_NOT = 1


def explain(
    words: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]...", help="A batch script.")],
    gpu: Annotated[str | None, typer.Option(help="GPU model that the job sees.")] = None,
    chdir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the job starts, as sbatch --chdir.")
    ] = None,
    sbatch: Annotated[
        str | None,
        typer.Option(metavar="OPTIONS", help="Options as on sbatch's command line, such as '-N2 -G8'."),
    ] = None,
    timeout: Annotated[
        int, typer.Option(min=1, max=3600, help="Longest time for the dry run (s).")
    ] = LIMIT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as a JSON object.")] = False,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="gpumem.toml. [default: /etc/gpumem/gpumem.toml]")
    ] = None,
) -> None:
    """Show what a batch script would start: programs, interpreters, ranks, GPUs, and what is skipped.

    The script is run by its own shell in a dry run; each Python program is stopped where it imports PyTorch.
    Nothing that it writes stays, and it has no network.

    Exit status: 0 PyTorch is used, 3 it is not, 1 the script cannot be run, 2 wrong usage.
    """
    import settings
    from estimator import launch_plan, sandbox, sbatch_options
    from estimator.batch_script import NotABatchScript
    from estimator.catalog import CatalogError, load
    from estimator.dry_run import Launch
    from settings.command_line import tell_failure

    try:
        configured = settings.load(config)
        catalog = load(configured.estimate.gpus_file)
        options = sbatch_options.on_command_line(sbatch)
        launch = Launch.of_script(Path(words[0]), words[1:], chdir, options=options, environment=os.environ)
        partition = configured.partitions.get(launch.script.partition or "") if launch.script else None
        model = catalog.find(gpu or (partition.gpu if partition else next(iter(catalog.gpus))))
        limits = configured.estimate.model_copy(update={"timeout_s": timeout})
        plan = make(launch, model, limits, dict(os.environ))
    except (
        settings.SettingsError,
        CatalogError,
        NotABatchScript,
        FileNotFoundError,
        launch_plan.PlanError,
        sandbox.Refused,
        sbatch_options.Refused,
    ) as error:
        tell_failure("gpumem", str(error), as_json)
        raise typer.Exit(COULD_NOT) from None
    if as_json:
        print(json.dumps(launch_plan.to_json(plan)))
    else:
        _show(plan)
    raise typer.Exit(0 if plan.trains else 3)


def make(launch: Launch, gpu: GPU, settings: Settings, environment: dict[str, str]) -> LaunchPlan:
    """Finds the plan of a job by a dry run.

    Raises:
        FileNotFoundError: its folder is not there.
        launch_plan.PlanError: what the run left behind is no plan.
        sandbox.Refused: the job cannot be contained here, and was not run.
    """
    from estimator import dry_run, failure, launch_plan

    with dry_run.prepared(launch, gpu, environment) as place:
        plan = {"out_dir": str(place.out), "environment": dict(place.environment)}
        outcome = place.run(settings, {**place.device(), "plan": plan})
        tail = outcome.tail.replace(str(dry_run.copy_in(place.folder)), launch.name)
        failed = failure.of_outcome(launch.name, launch.cwd, settings, outcome, tail)
        problems = [failed] if failed else []
        found = launch_plan.read(place.out, launch.name, launch.cwd, launch.script, launch.layout, problems)
        return found.with_names(str(dry_run.copy_in(place.folder).parent), dry_run.SPOOL)


def _show(plan: LaunchPlan) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from estimator.launch_plan import shown

    console = Console(highlight=False)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def row(name: str, text: str, style: str = "") -> None:
        table.add_row(name, Text(text, style=style))

    layout = plan.layout
    row("script", f"{plan.name}, run by {' '.join(plan.interpreter)} in {plan.cwd}")
    row(
        "asks for",
        f"{_many(layout.nodes, 'node')}, {_many(layout.tasks, 'task')}, {_many(layout.gpus, 'GPU')} a node",
    )
    for number, program in enumerate(plan.programs, 1):
        table.add_row()
        row(f"program {number}", shown(program.command), "bold")
        row("", _kind(program), "green" if program.framework == "PyTorch" else "dim")
        row("", f"{program.interpreter} (Python {program.python}) in {program.cwd}", "dim")
        if program.environment:
            changed = " ".join(f"{name}={value}" for name, value in sorted(program.environment.items()))
            row("", changed, "dim")
        if program.error:
            row("", program.error, "red")
    if plan.skipped:
        table.add_row()
    for index, skipped in enumerate(plan.skipped):
        row("skipped" if index == 0 else "", f"{shown(skipped.command)}: {skipped.why}")
    for problem in plan.problems:
        row("problem", problem, "red")
    if not plan.trains:
        row("", "no program of this script came as far as importing PyTorch", "yellow")
    console.print(table)


def _kind(program: Program) -> str:
    what = "does not use PyTorch"
    if program.framework:
        what = f"{program.framework} {program.framework_version or ''}".strip()
    by = f", started by {', '.join(program.via)}" if program.via else ""
    return f"{what}, {_many(program.ranks, 'rank')}{by}"


def _many(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"
