"""`gpumem`: the command for users. What is heavy is imported where it is used, so that `--help` is quick."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from estimator import calibrate_cli, doctor, explain_cli, replay_cli

if TYPE_CHECKING:
    from estimator.catalog import GPU, Catalog
    from estimator.dry_run import Launch
    from estimator.outputs import Outputs
    from estimator.remembered import Remembered
    from estimator.sandbox import Usage
    from estimator.trace import InputFile
    from settings import Estimate as EstimateSettings
    from settings import Settings

COULD_NOT, INTERRUPTED = 1, 130
WRONG_USAGE: type[BaseException] = typer.BadParameter.__base__ or typer.BadParameter  # all kinds of it

app = typer.Typer(
    name="gpumem",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"gpumem {version('gpumem')}")
        raise typer.Exit


_VERSION = typer.Option(
    "--version", callback=_tell_version, is_eager=True, help="Print the version and exit."
)


@app.callback()
def gpumem(version: Annotated[bool, _VERSION] = False) -> None:
    """GPU memory of Slurm jobs: estimated before they run."""


class _Failed(Exception):
    """No estimate; the text is the one reason, `inputs` the files it depends on."""

    def __init__(self, reason: str, inputs: Sequence[InputFile] = ()) -> None:
        super().__init__(reason)
        self.inputs = inputs


class _ScriptOrCommand(TyperCommand):
    """Tells `estimate -- python train.py` (a command) from `estimate train.sh` (a batch script).

    Our own options may stand on either side of SCRIPT; others, and all that follows `--`, are the script's.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What stands behind the name of the command in its usage line."""
        return ["[OPTIONS]", "SCRIPT [ARGS]... | -- COMMAND..."]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click, up to `--`; what follows is taken as it is."""
        end = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:end])
        script = list(ctx.params.get("words") or ())
        words = script + args[end + 1 :]
        if not words and not ctx.resilient_parsing:
            raise typer.BadParameter("name a batch script; or -- and a command")
        if script and script[0].startswith("-"):
            raise typer.BadParameter(f"no such option: {script[0]}")
        ctx.params["words"], ctx.meta["command"] = words, not script
        return rest


@app.command(
    cls=_ScriptOrCommand,
    context_settings={"ignore_unknown_options": True},
    no_args_is_help=True,
)
def estimate(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT",
            help="A batch script and its arguments; or -- and a command.",
            default_factory=list,
            show_default=False,
        ),
    ],
    gpu: Annotated[
        str | None, typer.Option(help="GPU model, such as a100-80gb. [default: that of the partition]")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, max=1000, help="Optimizer steps to trace.")] = None,
    world_size: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, help="Ranks of the job. [default: as the script asks for]"),
    ] = None,
    timeout: Annotated[
        int | None, typer.Option(min=1, max=3600, help="Longest time for the dry run (s).")
    ] = None,
    chdir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the job starts, as sbatch --chdir.")
    ] = None,
    array: Annotated[
        str | None, typer.Option(metavar="INDICES", help="Tasks of a job array, as sbatch --array.")
    ] = None,
    sbatch: Annotated[
        str | None,
        typer.Option(metavar="OPTIONS", help="Options as on sbatch's command line, such as '-N2 -G8'."),
    ] = None,
    submitted: Annotated[
        Path | None,
        typer.Option(
            "--submitted-as", hidden=True, help="The script as the job in this environment names it."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimate as a JSON object.")] = False,
    batch_option: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --advise: the script's option for its batch, such as --batch-size; "
            "the job is traced once more with half of it.",
        ),
    ] = None,
    advise: Annotated[
        bool, typer.Option("--advise", help="Tell which settings would save memory, and how much.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE|DIR", help="Keep the trace for gpumem replay; in a folder, all traces."),
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a memory snapshot for pytorch.org/memory_viz."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw memory over time by owner: .html, .svg or .png."),
    ] = None,
    cache: Annotated[
        bool,
        typer.Option(
            "--cache/--no-cache", help="Reuse an earlier estimate if the job starts the same, unchanged."
        ),
    ] = True,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="gpumem.toml. [default: /etc/gpumem/gpumem.toml]")
    ] = None,
) -> None:
    """Estimate the GPU memory of a training job, without a GPU.

    The job is started in a dry run on a pretend GPU and stopped after a few optimizer steps. It has no
    network, and nothing that it writes stays. ARGS that are options of this command too go behind `--`.

    Exit status: 0 estimated, 1 could not, 2 wrong usage.
    """
    try:
        outputs = _outputs(trace, snapshot, plot)
        _estimate(
            words,
            ctx.meta["command"],
            gpu,
            steps,
            world_size,
            timeout,
            chdir,
            array,
            sbatch,
            submitted,
            as_json,
            config,
            outputs,
            advise,
            batch_option,
            cache,
        )
    except _Failed as failed:
        if as_json:
            from estimator.report import failure_to_json

            inputs = [file.model_dump() for file in failed.inputs]
            print(json.dumps(failure_to_json(str(failed)) | {"inputs": inputs}))
        print(f"gpumem: {failed}", file=sys.stderr)
        raise typer.Exit(COULD_NOT) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _estimate(
    words: Sequence[str],
    is_command: bool,
    gpu_name: str | None,
    steps: int | None,
    world_size: int | None,
    timeout: int | None,
    chdir: Path | None,
    array: str | None,
    sbatch: str | None,
    submitted: Path | None,
    as_json: bool,
    config: Path | None,
    outputs: Outputs,
    advise: bool,
    batch_option: str | None,
    cache: bool,
) -> None:
    import settings
    from estimator import inputs, report, sandbox, sbatch_options, trace_run
    from estimator.advice import advise as advice_for
    from estimator.advice import retraced
    from estimator.batch_script import NotABatchScript
    from estimator.catalog import CatalogError, load
    from estimator.dry_run import Launch
    from estimator.estimate import EstimateError
    from estimator.estimate import estimate as estimated
    from estimator.outputs import OutputError, Outputs, largest
    from estimator.smaller_batch import NoSuchOption, halved

    try:
        configured = settings.load(config)
        limits = configured.estimate.model_copy(
            update={
                name: value for name, value in (("steps", steps), ("timeout_s", timeout)) if value is not None
            }
        )
        catalog = load(limits.gpus_file)
        launch = (
            Launch.of_command(words, chdir)
            if is_command
            else Launch.of_script(
                Path(words[0]),
                words[1:],
                chdir,
                array,
                options=sbatch_options.on_command_line(sbatch),
                environment=os.environ,
            )
        )
        if array is not None and launch.array is None:
            _wrong_usage(f"--array {array}: not indices as sbatch takes them, such as 0-15:4,20")
        launch = replace(launch, world_size=world_size)
        if submitted is not None:
            submit_dir = os.environ.get("SLURM_SUBMIT_DIR")
            launch = replace(launch, submitted=submitted, submit_dir=Path(submit_dir) if submit_dir else None)
        gpu = _choose(catalog, configured, gpu_name, launch.script.partition if launch.script else None)
        title = shlex.join(words) if is_command else launch.name
        remembered = _remembered(launch, gpu, limits, configured.guard.enabled) if cache else None
        wants_trace = advise or outputs != Outputs()
        earlier = None
        with _progress(f"{launch.name} on a pretend {gpu.key}") as watch:
            if remembered is not None and remembered.any and not wants_trace:
                earlier = remembered.find(lambda: trace_run.starts(launch, gpu, limits, os.environ))
            if earlier is None:
                traced = trace_run.run(launch, gpu, limits, os.environ, watch)
                outputs.keep_traces(traced.traces)
                result = estimated(
                    traced.traces,
                    gpu,
                    limits,
                    traced.wall_s,
                    traced.failures,
                    traced.host_memory_bytes,
                    traced.notes,
                    configured.guard.enabled,
                )
                if remembered is not None and not traced.failures:
                    remembered.keep(traced.launches, result)
                outputs.write(traced.traces, f"{launch.name} on {gpu.name}")
            else:
                result = earlier
        advice = advice_for(largest(traced.traces), result, gpu) if advise else []
        if advise and batch_option:
            with halved(launch, batch_option) as (smaller, change):
                with _progress(f"{launch.name} with {change}") as watch:
                    again = trace_run.run(smaller, gpu, limits, os.environ, watch)
                other = estimated(again.traces, gpu, limits, again.wall_s, again.failures)
                advice.insert(0, retraced(change, result, other))
    except (
        settings.SettingsError,
        CatalogError,
        EstimateError,
        NoSuchOption,
        NotABatchScript,
        OutputError,
        sandbox.Refused,
        sbatch_options.Refused,
    ) as error:
        raise _Failed(str(error)) from None
    except trace_run.TraceFailed as error:
        raise _Failed(str(error), error.inputs) from None
    if as_json:
        asked = {"advice": [one.to_json() for one in advice]} if advise else {}
        name = launch.script.job_name if launch.script and inputs.name_jobs(result.inputs) else None
        more = {"reused": earlier is not None, "job_name": name}
        print(json.dumps(report.to_json(result) | more | asked))
    else:
        from rich.console import Console

        report.show(result, Console(), title)
        if advise:
            report.show_advice(advice, Console())


def _remembered(launch: Launch, gpu: GPU, settings: EstimateSettings, guarded: bool) -> Remembered | None:
    """The user's earlier estimates of such jobs; None where there is no home to keep them."""
    from estimator.remembered import Remembered, folder_of

    folder = folder_of(os.environ)
    return Remembered(folder, launch, gpu, settings, guarded) if folder is not None else None


def _outputs(trace: Path | None, snapshot: Path | None, plot: Path | None) -> Outputs:
    """Where to write what, as far as that can be written."""
    from estimator.outputs import OutputError, Outputs

    outputs = Outputs(trace, snapshot, plot)
    try:
        outputs.check()
    except OutputError as error:
        raise _Failed(str(error)) from None
    return outputs


def _choose(catalog: Catalog, settings: Settings, name: str | None, partition: str | None) -> GPU:
    """The GPU that is named, else that of the job's partition, else that of the first one in the settings."""
    from estimator.catalog import CatalogError

    partitions = settings.partitions
    if name is None and partitions:
        name = (partitions.get(partition or "") or next(iter(partitions.values()))).gpu
        return catalog.find(name)
    if name is None:
        _wrong_usage(f"name the GPU with --gpu: one of {', '.join(catalog.gpus)}")
    try:
        return catalog.find(name)
    except CatalogError as error:
        _wrong_usage(f"--gpu {error}")


def _wrong_usage(message: str) -> NoReturn:
    raise typer.BadParameter(message)


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[Usage], None]]:
    """A line on stderr that says what happens, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda usage: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(f"{escape(what)}: starting") as line:

        def watch(usage: Usage) -> None:
            processes = "1 process" if usage.processes == 1 else f"{usage.processes} processes"
            line.update(
                f"{escape(what)}: {usage.wall_s:.0f} s, {processes}, "
                f"{usage.memory_bytes / 1024**3:.1f} GiB of RAM"
            )

        yield watch


app.command(no_args_is_help=True)(replay_cli.replay)
app.command(
    no_args_is_help=True, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)(explain_cli.explain)
app.command()(doctor.doctor)
app.command()(calibrate_cli.calibrate)


def main() -> NoReturn:
    """The program `gpumem`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that temporary folders go
    try:
        status = app(prog_name="gpumem", standalone_mode=False)
    except WRONG_USAGE as error:
        from settings.command_line import tell_wrong_usage

        status = tell_wrong_usage(error)
    sys.exit(status or 0)
