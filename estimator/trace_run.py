"""A dry run of a job: its script or command runs contained, as in a job with one GPU, and is traced."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from estimator import batch_script, failure, layout, sandbox, shims, starter, trace
from estimator.batch_script import BatchScript
from estimator.catalog import GPU
from estimator.layout import Layout
from settings import MIB
from settings import Estimate as Settings

HERE = Path(__file__).parent
LIBRARY = HERE / "fake_cuda" / "lib" / "libgpumem_cuda.so"
MAX_EVENTS = 2_000_000
WRITING_S = 10.0  # for the traces of programs that are ended at the time limit
JOB_ID = "1"
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
GPU_UUID = "GPU-00000000-0000-0000-0000-%012d"
WRITABLE = ("HOME", "TMPDIR", "SCRATCH", "WORK")  # variables that name folders where jobs write
OFFLINE = {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
CLUSTER_VARIABLES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "GPUMEM_")


class TraceFailed(Exception):
    """The dry run left nothing to estimate from; the text says why, in one line.

    `inputs` are the user's files that it read as code until then: when they change, it may go better.
    """

    def __init__(self, reason: str, inputs: Sequence[trace.InputFile] = ()) -> None:
        super().__init__(trace.printable(reason))
        self.inputs = tuple(inputs)


@dataclass(frozen=True)
class Launch:
    """What a job runs in `cwd`: the arguments `command` of a batch script, or a command without one."""

    name: str
    command: tuple[str, ...]
    cwd: Path
    script: BatchScript | None = None
    world_size: int | None = None

    @property
    def layout(self) -> Layout:
        """Nodes, tasks and GPUs; `world_size` is the number of ranks if it is known better than they are."""
        found = layout.of_script(self.script) if self.script else layout.of_command(self.command)
        return found.with_ranks(self.world_size) if self.world_size else found

    @classmethod
    def of_script(cls, path: Path, arguments: Sequence[str], cwd: Path | None = None) -> Launch:
        """As `sbatch path arguments` starts it; `cwd` is `sbatch --chdir`, which beats that of the script.

        Raises:
            TraceFailed: `sbatch` would not take it.
        """
        try:
            script = batch_script.read(path)
        except batch_script.NotABatchScript as error:
            raise TraceFailed(str(error)) from None
        return cls(path.name, tuple(arguments), (cwd or script.chdir or Path()).absolute(), script)

    @classmethod
    def of_command(cls, command: Sequence[str], cwd: Path | None = None) -> Launch:
        """A command as it would stand in a batch script."""
        program = next((Path(word).name for word in command if word.endswith(".py")), Path(command[0]).name)
        return cls(program, tuple(command), (cwd or Path()).absolute())


@dataclass(frozen=True)
class Traced:
    """The traces of a job's Python processes, one of them complete; `failures`: what else went wrong.

    `host_memory_bytes` is the most that all its processes together had resident; `notes` tell what the
    containment lacked.
    """

    traces: tuple[trace.Trace, ...]
    failures: tuple[str, ...]
    wall_s: float
    host_memory_bytes: int
    notes: tuple[str, ...] = ()


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

    Of a distributed job one rank is run, and then the middle one, if there is time for it.

    Raises:
        TraceFailed: there is no complete trace; the first reason is the most helpful one.
        sandbox.Refused: the job cannot be contained here, and was not run.
    """
    first = _run(launch, gpu, settings, environment, watch, middle=False)
    ranks = max(one.world_size for one in first.traces)
    left_s = settings.timeout_s - first.wall_s
    if ranks == 1 or settings.ranks == 1:
        return first
    if left_s < first.wall_s:
        return dataclasses.replace(first, notes=(*first.notes, f"of {ranks} ranks only the first was traced"))
    limits = settings.model_copy(update={"timeout_s": int(left_s)})
    return _with_middle(first, lambda: _run(launch, gpu, limits, environment, watch, middle=True), ranks)


def _with_middle(first: Traced, run_middle: Callable[[], Traced], ranks: int) -> Traced:
    """Both runs as one; a middle rank that cannot be traced alone leaves the first one's estimate."""
    try:
        middle = run_middle()
    except TraceFailed as failed:
        note = f"of {ranks} ranks only the first was traced: rank {ranks // 2} alone failed: {failed}"
        return dataclasses.replace(first, notes=(*first.notes, trace.printable(note)))
    return Traced(
        (*first.traces, *(one for one in middle.traces if one.rank)),
        first.failures,
        first.wall_s + middle.wall_s,
        max(first.host_memory_bytes, middle.host_memory_bytes),
        first.notes,
    )


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
    if not LIBRARY.is_file():
        raise TraceFailed(f"gpumem is not completely installed: {LIBRARY} is missing")
    if not launch.cwd.is_dir():
        raise TraceFailed(f"{launch.cwd}: no such folder to start the job in")
    with tempfile.TemporaryDirectory(prefix="gpumem-") as made:
        folder = Path(made).resolve()
        out = folder / "out"
        out.mkdir()
        programs = folder / "bin"
        gpus = [GPU_UUID % index for index in range(launch.layout.gpus)]
        shims.write(
            programs,
            name=gpu.name,
            uuids=gpus,
            memory_bytes=gpu.memory_bytes,
            compute_capability=gpu.capability,
            middle=middle,
        )
        tracer = folder / "tracer.json"
        deadline = time.monotonic() + _time_for_the_script(settings.timeout_s)
        traced = {
            "out_dir": str(out),
            "steps": settings.steps,
            "max_events": MAX_EVENTS,
            "deadline": deadline,
        }
        traced |= {"middle": middle, "world_size": launch.world_size}
        tracer.write_text(json.dumps(_tracer_settings(gpu, gpus, traced)), encoding="utf-8")
        job = _job_environment(environment, launch, middle) | {
            "PATH": _prepended(str(programs), environment.get("PATH", os.defpath)),
        }
        outcome = sandbox.run(
            _command(launch, folder),
            cwd=launch.cwd,
            environment=job,
            out_dir=out,
            files=folder,
            preload=starter.write(folder / "start", tracer),
            covers=shims.covered(programs, environment.get("PATH", os.defpath)),
            discard=_writable(launch.cwd, environment),
            limits=sandbox.Limits(
                wall_s=settings.timeout_s,
                cpu_s=failure.CPU_TIMES_WALL * settings.timeout_s,
                memory_bytes=settings.memory_mib * MIB,
            ),
            watch=watch,
            required=settings.require_containment,
        )
        try:
            traces = tuple(_without_copy(one, folder) for one in trace.read_all(out))
        except trace.TraceError as error:
            raise TraceFailed(str(error)) from None
    if any(one.end == "deadline" for one in traces) and outcome.end == "exit":
        outcome = dataclasses.replace(outcome, end="timeout")  # its programs were ended just before
    tail = _COLOURS.sub("", outcome.tail).replace(f"{folder}/job/", "")
    if not any(_is_complete(one) for one in traces):
        script = launch.script.path if launch.script else None
        reason = failure.of_run(
            launch.name, launch.cwd, settings, outcome, tail, traces
        ) or failure.of_absence(launch.name, launch.cwd, script, tail, traces)
        raise TraceFailed(reason, [file for one in traces for file in one.inputs])
    failed = failure.of_outcome(launch.name, launch.cwd, settings, outcome, tail)
    if outcome.end == "timeout":
        failed = f"{launch.name} was stopped after {settings.timeout_s} s: a later part of it may need more"
    if failed is None or any(one.end == "exception" for one in traces):
        failed = None
    failures = (trace.printable(failed),) if failed is not None else ()
    return Traced(traces, failures, outcome.wall_s, outcome.memory_peak_bytes, outcome.notes)


# --- before the run ---


def _time_for_the_script(timeout_s: float) -> float:
    """What remains of the time limit (s) once its programs have been given time to write their traces."""
    return timeout_s - min(WRITING_S, timeout_s / 5)


def _tracer_settings(gpu: GPU, uuids: Sequence[str], traced: Mapping[str, object]) -> dict[str, object]:
    devices = [
        {
            "name": gpu.name,
            "uuid": uuid,
            "memory_bytes": gpu.usable_bytes,
            "context_bytes": gpu.context_bytes,
            "compute_capability": gpu.capability,
            "sm_count": gpu.sm_count,
            "index": index,
        }
        for index, uuid in enumerate(uuids)
    ]
    return {
        "library": str(LIBRARY),
        "devices": devices,
        "enforce_limit": False,
        "node_dir": None,
        "trace": dict(traced),
    }


def _command(launch: Launch, folder: Path) -> list[str]:
    """The command to run; of a batch script a copy is run, as Slurm does."""
    if launch.script is None:
        return list(launch.command)
    copy = folder / "job" / launch.name
    copy.parent.mkdir()
    shutil.copyfile(launch.script.path, copy)
    return [*launch.script.interpreter, str(copy), *launch.command]


def _job_environment(environment: Mapping[str, str], launch: Launch, middle: bool) -> dict[str, str]:
    """The user's environment with what Slurm sets in the batch script of such a job."""
    kept = {name: value for name, value in environment.items() if not name.startswith(CLUSTER_VARIABLES)}
    options = launch.script.options if launch.script else {}
    cpus = options.get("cpus-per-task") or options.get("c") or "1"
    job = {
        "SLURM_JOB_ID": JOB_ID,
        "SLURM_JOBID": JOB_ID,
        "SLURM_JOB_NAME": launch.script.job_name if launch.script else launch.name,
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_CPUS_PER_TASK": cpus,
        "SLURM_SUBMIT_HOST": "localhost",
        "SLURM_SUBMIT_DIR": str(launch.cwd),
    }
    job |= layout.slurm_variables(launch.layout, launch.script)
    if launch.world_size and launch.script is None and not layout.is_launched(launch.command):
        rank = launch.world_size // 2 if middle else 0
        job |= layout.worker_variables(launch.world_size, rank, launch.layout.gpus)
    if launch.script and launch.script.partition:
        job["SLURM_JOB_PARTITION"] = launch.script.partition
    array = options.get("array") or options.get("a")
    if array and (first := re.match(r"\d+", array)):
        job |= {"SLURM_ARRAY_JOB_ID": JOB_ID, "SLURM_ARRAY_TASK_ID": first[0], "SLURM_ARRAY_TASK_COUNT": "1"}
    polite = {"OMP_NUM_THREADS": str(min(4, os.cpu_count() or 1))}  # on a login node that others use as well
    return polite | kept | OFFLINE | job


def _writable(cwd: Path, environment: Mapping[str, str]) -> list[Path]:
    """Where a job usually writes; the dry run may, too, and nothing of it stays."""
    named = [Path(value) for name in WRITABLE if (value := environment.get(name))]
    return [cwd, Path("/tmp"), Path("/var/tmp"), *(place for place in named if place.is_absolute())]  # noqa: S108


def _prepended(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first


# --- after the run ---


def _without_copy(one: trace.Trace, folder: Path) -> trace.Trace:
    """The trace without the paths of the script's copy, which is gone when somebody reads it."""
    inputs = tuple(file for file in one.inputs if not file.path.startswith(f"{folder}/"))
    error = one.error
    if error is not None and error.file and error.file.startswith(f"{folder}/"):
        error = error.model_copy(update={"file": Path(error.file).name})
    return one.model_copy(update={"inputs": inputs, "error": error})


def _is_complete(one: trace.Trace) -> bool:
    """Whether the process used the GPU, and ended by itself or after it had shown enough."""
    if one.events is None or not len(one.events):
        return False
    if one.end == "deadline":
        return one.steps >= 2 or one.only_infers
    return one.end in ("steps", "steady", "script")
