"""A traced run of a job: its Python programs leave traces in a dry run, and what keeps them from it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from estimator import dry_run, failure, inputs, job_array, sandbox, shims, staging, trace
from estimator.catalog import GPU
from estimator.dry_run import Launch
from estimator.job_array import JobArray
from settings import GIB
from settings import Estimate as Settings

MAX_EVENTS = 2_000_000
SAME_PEAK = 0.02  # of it: tasks of an array whose peaks differ by less are taken to do the same
LONGEST_LOOK_S = 20  # at what a job starts, before it is traced
WRITING_S = 10.0  # for the traces of programs that are ended at the time limit
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class TraceFailed(Exception):
    """The dry run left nothing to estimate from; the text says why, in one line.

    `inputs` are the user's files that it read as code until then: when they change, it may go better.
    """

    def __init__(self, reason: str, inputs: Sequence[trace.InputFile] = ()) -> None:
        super().__init__(trace.printable(reason))
        self.inputs = tuple(inputs)


@dataclass(frozen=True)
class Traced:
    """The traces of a job's Python processes, one of them complete; `failures`: what else went wrong.

    `host_memory_bytes` is the most that all its processes together had resident; `notes` tell what the
    containment lacked. `launches` are what the programs of the first rank and task noted of themselves.
    """

    traces: tuple[trace.Trace, ...]
    failures: tuple[str, ...]
    wall_s: float
    host_memory_bytes: int
    notes: tuple[str, ...] = ()
    launches: tuple[str, ...] = ()


def starts(launch: Launch, gpu: GPU, settings: Settings, environment: Mapping[str, str]) -> tuple[str, ...]:
    """What a job starts, as `Traced.launches`: by a dry run that ends where PyTorch begins; () if that fails.

    Raises:
        sandbox.Refused: the job cannot be contained here, and was not run.
    """
    try:
        with dry_run.prepared(launch, gpu, environment) as place:
            plan = {"out_dir": str(place.out), "environment": {}}
            limits = settings.model_copy(update={"timeout_s": min(settings.timeout_s, LONGEST_LOOK_S)})
            outcome = place.run(limits, {**place.device(), "plan": plan})
            return dry_run.launches(place.out) if outcome.end == "exit" else ()
    except FileNotFoundError:
        return ()


def run(
    launch: Launch,
    gpu: GPU,
    settings: Settings,
    environment: Mapping[str, str],
    watch: Callable[[sandbox.Usage], None] = lambda usage: None,
) -> Traced:
    """Runs the job on a pretend `gpu` for `settings.steps` optimizer steps and collects its traces.

    Args:
        launch: what runs.
        gpu: what its programs see.
        settings: steps, and the limits of time (s) and host memory (MiB).
        environment: of the user, as `sbatch` would pass it on.
        watch: called about ten times a second.

    Of a distributed job one rank is run, and then the middle one, if there is time for it. Of a job array the
    first task is run, and the last one if their index may matter.

    Raises:
        TraceFailed: there is no complete trace; the first reason is the most helpful one.
        sandbox.Refused: the job cannot be contained here, and was not run.
    """
    first = _of_ranks(launch, gpu, settings, environment, watch)
    array = launch.array
    if array is None or array.count == 1 or launch.array_task is not None:
        return first
    script = launch.script.path.read_text("utf-8", "replace") if launch.script else ""
    read = [Path(file.path) for one in first.traces for file in one.inputs if not inputs.is_of_package(file)]
    if not job_array.may_differ(script, launch.command, launch.cwd, read):
        return first
    left_s = settings.timeout_s - first.wall_s
    files = [file for one in first.traces for file in one.inputs]
    if left_s < first.wall_s:
        raise TraceFailed("tasks of the array may differ, and there is no time to trace two of them", files)
    try:
        limits = settings.model_copy(update={"timeout_s": int(left_s)})
        last = _of_ranks(replace(launch, array_task=array.last), gpu, limits, environment, watch)
    except TraceFailed as failed:
        raise TraceFailed(f"task {array.last} of the array: {failed}", (*files, *failed.inputs)) from None
    return _of_two_tasks(array, first, last)


def _of_two_tasks(array: JobArray, first: Traced, last: Traced) -> Traced:
    """Both ends of an array as one, if they need the same.

    Raises:
        TraceFailed: they do not; then nobody knows what those between them need.
    """
    peaks = [_reserved_peak(one) for one in (first, last)]
    if max(peaks) - min(peaks) > SAME_PEAK * max(peaks):
        sizes = " and ".join(f"{peak / GIB:.1f}" for peak in peaks)
        ends = f"{array.first} and {array.last}"
        raise TraceFailed(
            f"tasks of the array differ: {ends} need {sizes} GiB, others may need more",
            [file for one in (*first.traces, *last.traces) for file in one.inputs],
        )
    doubt = f"of {array.count} array tasks the first and the last were traced: others may need more"
    return Traced(
        (*first.traces, *last.traces),
        (*first.failures, *last.failures, doubt),
        first.wall_s + last.wall_s,
        max(first.host_memory_bytes, last.host_memory_bytes),
        tuple(dict.fromkeys((*first.notes, *last.notes))),
        first.launches,
    )


def _reserved_peak(traced: Traced) -> int:
    return max((one.peaks.reserved for one in traced.traces if one.peaks is not None), default=0)


def _of_ranks(
    launch: Launch,
    gpu: GPU,
    settings: Settings,
    environment: Mapping[str, str],
    watch: Callable[[sandbox.Usage], None],
) -> Traced:
    """The first rank, and the middle one if there is time for it."""
    first = _run(launch, gpu, settings, environment, watch, middle=False)
    ranks = max(one.world_size for one in first.traces)
    if ranks == 1:
        return first
    left_s = settings.timeout_s - first.wall_s
    if settings.ranks == 1 or left_s < first.wall_s:
        why = "as estimate.ranks asks for" if settings.ranks == 1 else "there was no time for another"
        return _only_first(first, ranks, why)
    limits = settings.model_copy(update={"timeout_s": int(left_s)})
    return _with_middle(first, lambda: _run(launch, gpu, limits, environment, watch, middle=True), ranks)


def _with_middle(first: Traced, run_middle: Callable[[], Traced], ranks: int) -> Traced:
    """Both runs as one; a middle rank that cannot be traced alone leaves the first one's estimate."""
    try:
        middle = run_middle()
    except TraceFailed as failed:
        return _only_first(first, ranks, f"rank {ranks // 2} alone failed: {failed}")
    traces = tuple(one for one in middle.traces if one.rank and one.events is not None)
    if not traces:
        return _only_first(first, ranks, f"rank {ranks // 2} alone did not use the GPU")
    return Traced(
        (*first.traces, *traces),
        tuple(dict.fromkeys(first.failures + middle.failures)),
        first.wall_s + middle.wall_s,
        max(first.host_memory_bytes, middle.host_memory_bytes),
        first.notes,
        first.launches,
    )


def _only_first(first: Traced, ranks: int, why: str) -> Traced:
    """Nothing is known of the other ranks, which keeps the estimate from being exact."""
    doubt = trace.printable(f"of {ranks} ranks only the first was traced: {why}")
    return replace(first, failures=(*first.failures, doubt))


def _run(
    launch: Launch,
    gpu: GPU,
    settings: Settings,
    environment: Mapping[str, str],
    watch: Callable[[sandbox.Usage], None],
    *,
    middle: bool,
) -> Traced:
    """One dry run, for the first or the middle rank."""
    began_ns = time.time_ns()
    try:
        with dry_run.prepared(launch, gpu, environment, middle=middle) as place:
            traced = {
                "out_dir": str(place.out),
                "steps": settings.steps,
                "selected_fraction": settings.selected_fraction,
                "max_events": MAX_EVENTS,
                "deadline": time.monotonic() + _time_for_the_script(settings.timeout_s),
                "middle": middle,
                "world_size": launch.world_size,
            }
            outcome = place.run(settings, {**place.device(), "trace": traced}, watch=watch)
            folder = place.folder
            skipped = staging.skipped(place.out, shims.NETWORK, shims.NOT_HERE, shims.INSTALLS)
            contained = staging.of_container(launch.name, place.out)
            noted = inputs.noted(place.out, folder)
            launches = dry_run.launches(place.out)
            traces = tuple(_without_copy(one, folder, launch.name) for one in trace.read_all(place.out))
    except (FileNotFoundError, trace.TraceError) as error:
        raise TraceFailed(str(error)) from None
    made_of = [file.path for one in traces for file in one.inputs]
    files = inputs.of_paths((*noted.read, *made_of), began_ns)
    files += inputs.of_absent(noted.absent, launch.cwd)
    traces = tuple(one.model_copy(update={"inputs": files}) for one in traces)
    if any(one.end == "deadline" for one in traces) and outcome.end == "exit":
        outcome = replace(outcome, end="timeout")  # its programs were ended just before
    tail = _COLOURS.sub("", outcome.tail).replace(str(dry_run.copy_in(folder)), launch.name)
    if not any(_is_complete(one) for one in traces):
        script = launch.script.path if launch.script else None
        reason = failure.of_run(
            launch.name, launch.cwd, settings, outcome, tail, traces
        ) or failure.of_absence(launch.name, launch.cwd, script, tail, traces)
        reason = contained or reason
        reason += staging.explain(reason, skipped, tail, launch.cwd)
        raise TraceFailed(reason, files)
    failed = failure.of_outcome(launch.name, launch.cwd, settings, outcome, tail)
    if outcome.end == "timeout":
        failed = f"{launch.name} was stopped after {settings.timeout_s} s: a later part of it may need more"
    if failed is None or any(one.end == "exception" for one in traces):
        failed = None
    failures = (trace.printable(failed),) if failed is not None else ()
    return Traced(traces, failures, outcome.wall_s, outcome.memory_peak_bytes, outcome.notes, launches)


# --- before the run ---


def _time_for_the_script(timeout_s: float) -> float:
    """What remains of the time limit (s) once its programs have been given time to write their traces."""
    return timeout_s - min(WRITING_S, timeout_s / 5)


# --- after the run ---


def _without_copy(one: trace.Trace, folder: Path, name: str) -> trace.Trace:
    """The trace without the paths of the script's copy, which is gone when somebody reads it."""
    inputs = tuple(file for file in one.inputs if not file.path.startswith(f"{folder}/"))
    error = one.error
    if error is not None and error.file and error.file.startswith(f"{folder}/"):
        error = error.model_copy(update={"file": name})
    return one.model_copy(update={"inputs": inputs, "error": error})


def _is_complete(one: trace.Trace) -> bool:
    """Whether the process used the GPU, and ended by itself or after it had shown enough."""
    if one.events is None or not len(one.events):
        return False
    if one.end == "deadline":
        return one.steps >= 2 or one.only_infers
    return one.end in ("steps", "steady", "script")
