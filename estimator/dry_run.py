"""A job's script or command in a dry run: contained, in such a job's environment, its Python observed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from estimator import (
    batch_script,
    containers,
    failure,
    folders,
    image_files,
    inputs,
    job_array,
    launchers,
    layout,
    sandbox,
    shims,
    starter,
)
from estimator.batch_script import BatchScript
from estimator.catalog import GPU
from estimator.job_array import JobArray
from estimator.layout import Layout
from settings import MIB
from settings import Estimate as Settings

MOST_LAUNCHES, MOST_BYTES = 1000, 1024**2  # noted, and bytes of one
JOB_ID = "1234567"  # scripts take the last digits for a port
COPY = "slurm_script"  # as slurmd names it
SPOOL = f"/var/spool/slurmd/job{JOB_ID}"  # where that lies on a node
GPU_UUID = "GPU-00000000-0000-0000-0000-%012d"
WRITABLE = ("HOME", "TMPDIR", "SCRATCH", "WORK")  # variables that name folders where jobs write
OFFLINE = {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
LOGIN = ("HOME", "LANG", "LOGNAME", "SHELL", "USER")  # what a login shell starts with
LOGIN_PATH = "/usr/local/bin:/usr/bin:/bin"
LOGIN_SHELLS = ("bash", "dash", "ksh", "sh", "zsh")
CONFIGURATION_BYTES = 64 * 1024  # of a launcher's file: no more is read
CLUSTER_VARIABLES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "GPUMEM_")
LIBRARY = Path(__file__).parent / "fake_cuda" / "lib" / "libgpumem_cuda.so"


@dataclass(frozen=True)
class Launch:
    """What a job runs in `cwd`: the arguments `command` of a batch script, or a command without one.

    Of a job array it is the task `array_task`, by default the first one. `submitted` is the script as it was
    named to `sbatch`, and `submit_dir` where that was called, if not in `cwd`.
    """

    name: str
    command: tuple[str, ...]
    cwd: Path
    script: BatchScript | None = None
    world_size: int | None = None
    array: JobArray | None = None
    array_task: int | None = None
    submitted: Path | None = None
    submit_dir: Path | None = None

    @property
    def layout(self) -> Layout:
        """Nodes, tasks and GPUs; `world_size` is the number of ranks if it is known better than they are."""
        if self.script:
            found = layout.of_script(self.script)
        else:
            found = layout.of_command(self.command, self._configured())
        return found.with_ranks(self.world_size) if self.world_size else found

    def _configured(self) -> Mapping[str, int]:
        """What the launcher in the command reads from a file, if it can be read."""
        name = launchers.configuration(self.command)
        if name is None:
            return {}
        try:
            with (self.cwd / name).open(encoding="utf-8", errors="replace") as file:
                return launchers.configured(file.read(CONFIGURATION_BYTES))
        except (OSError, ValueError):
            return {}

    @classmethod
    def of_script(
        cls,
        path: Path,
        arguments: Sequence[str],
        cwd: Path | None = None,
        array: str | None = None,
        *,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Launch:
        """As `sbatch options path arguments` starts it; `cwd` is `sbatch --chdir`, `array` `--array`.

        What is asked for on the command line beats `environment` (`SBATCH_*`), and that beats the script.

        Raises:
            NotABatchScript: `sbatch` would not take it.
        """
        script = batch_script.read(path).with_options(options, environment or {})
        where = (cwd or script.chdir or Path()).absolute()
        submit_dir = Path().absolute() if cwd is None else None
        indices = array or script.options.get("array")
        tasks = job_array.parse(indices) if indices else None
        return cls(
            path.name,
            tuple(arguments),
            where,
            script,
            array=tasks,
            submitted=path.absolute(),
            submit_dir=submit_dir,
        )

    @classmethod
    def of_command(cls, command: Sequence[str], cwd: Path | None = None) -> Launch:
        """A command as it would stand in a batch script."""
        program = next((Path(word).name for word in command if word.endswith(".py")), Path(command[0]).name)
        return cls(program, tuple(command), (cwd or Path()).absolute())


@dataclass(frozen=True)
class DryRun:
    """A job that is ready to run: a temporary `folder`, and in it `out`, where its processes may write.

    `gpus` are the UUIDs of the GPUs of one node, `environment` is what the job finds.
    """

    launch: Launch
    gpu: GPU
    folder: Path
    out: Path
    gpus: tuple[str, ...]
    environment: Mapping[str, str]
    search_path: str

    def run(
        self,
        settings: Settings,
        configuration: Mapping[str, object],
        watch: Callable[[sandbox.Usage], None] = lambda usage: None,
    ) -> sandbox.Outcome:
        """Runs it; every Python interpreter of it starts the tracer first, with `configuration`.

        Raises:
            sandbox.Refused: the job cannot be contained here, and was not run.
        """
        file = self.folder / "tracer.json"
        launches = {"out_dir": str(self.out), "folder": str(self.folder)}
        file.write_text(json.dumps({"launches": launches, **configuration}), encoding="utf-8")
        return sandbox.run(
            _command(self.launch, self.folder, self.environment),
            cwd=self.launch.cwd,
            environment=self.environment,
            out_dir=self.out,
            files=self.folder,
            preload=starter.write(self.folder / "start", file, notes=self.out / inputs.NOTES),
            covers=shims.covered(self.folder / "bin", self.search_path),
            held=containers.held(self.search_path),
            added=shims.missing(self.folder / "bin", self.search_path),
            images=not image_files.obstacle(),
            discard=_writable(self.launch.cwd, self.environment),
            limits=sandbox.Limits(
                wall_s=settings.timeout_s,
                cpu_s=failure.CPU_TIMES_WALL * settings.timeout_s,
                memory_bytes=settings.memory_mib * MIB,
            ),
            watch=watch,
            required=settings.require_containment,
        )

    def device(self) -> dict[str, object]:
        """The fake device as the tracer is told of it."""
        devices = [
            {
                "name": self.gpu.name,
                "uuid": uuid,
                "memory_bytes": self.gpu.usable_bytes,
                "context_bytes": self.gpu.context_bytes,
                "compute_capability": self.gpu.capability,
                "sm_count": self.gpu.sm_count,
                "index": index,
                "convolution_positions": list(self.gpu.convolutions.model_dump().values()),
            }
            for index, uuid in enumerate(self.gpus)
        ]
        return {"library": str(LIBRARY), "devices": devices, "enforce_limit": False, "node_dir": None}


def missing_parts() -> list[Path]:
    """The libraries that are built when gpumem is installed, as far as they are not there."""
    return [library for library in (LIBRARY, starter.LIBRARY) if not library.is_file()]


@contextmanager
def prepared(
    launch: Launch, gpu: GPU, environment: Mapping[str, str], *, middle: bool = False
) -> Iterator[DryRun]:
    """Makes the folder of a dry run, and takes it away; `middle`: steps start their middle rank.

    `environment` is that of the user, as `sbatch` would pass it on.

    Raises:
        FileNotFoundError: the job's folder, or a part of gpumem, is not there; the text says which.
    """
    if missing := missing_parts():
        raise FileNotFoundError(f"gpumem is not completely installed: {missing[0]} is missing")
    if not launch.cwd.is_dir():
        raise FileNotFoundError(f"{launch.cwd}: no such folder to start the job in")
    with folders.temporary("gpumem-") as folder:
        out, programs = folder / "out", folder / "bin"
        out.mkdir()
        gpus = tuple(GPU_UUID % index for index in range(launch.layout.gpus))
        search_path = environment.get("PATH", os.defpath)
        shims.write(
            programs,
            out,
            name=gpu.name,
            uuids=gpus,
            memory_bytes=gpu.memory_bytes,
            compute_capability=gpu.capability,
            search_path=search_path,
            command=shlex.join([str(launch.submitted or launch.name), *launch.command]),
            cwd=launch.cwd,
            middle=middle,
        )
        job = job_environment(environment, launch, middle)
        job["PATH"] = f"{programs}:{job.get('PATH', os.defpath)}"
        yield DryRun(launch, gpu, folder, out, gpus, job, search_path)


def launches(folder: Path) -> tuple[str, ...]:
    """What the programs of a dry run noted of themselves (`tracer/launches.py`), in any order."""
    found = []
    for path in sorted(folder.glob("launch-*.json"))[: MOST_LAUNCHES + 1]:
        with suppress(OSError):
            if path.is_file() and not path.is_symlink() and path.stat().st_size < MOST_BYTES:
                found.append(path.read_text("utf-8", "replace"))
    return tuple(found)


def copy_in(folder: Path) -> Path:
    """The copy of the batch script that is run, in the folder of a dry run: Slurm runs a copy, too."""
    return folder / "job" / COPY


def _command(launch: Launch, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """The command to run; without the user's environment it starts from a login shell, as in Slurm."""
    if launch.script is None:
        return list(launch.command)
    copy = copy_in(folder)
    copy.parent.mkdir()
    shutil.copyfile(launch.script.path, copy)
    command = [*launch.script.interpreter, str(copy), *launch.command]
    shell = environment.get("SHELL", "/bin/sh")
    if _is_anew(launch.script.options.get("export")) and Path(shell).name in LOGIN_SHELLS:
        return [shell, "-lc", 'exec "$0" "$@"', *command]
    return command


def job_environment(environment: Mapping[str, str], launch: Launch, middle: bool = False) -> dict[str, str]:
    """The user's environment with what Slurm sets in the batch script of such a job."""
    kept = {name: value for name, value in environment.items() if not name.startswith(CLUSTER_VARIABLES)}
    if launch.script and (export := launch.script.options.get("export")):
        kept = exported(kept, export)
    job = {
        "SLURM_JOB_ID": JOB_ID,
        "SLURM_JOBID": JOB_ID,
        "SLURM_JOB_NAME": launch.script.job_name if launch.script else launch.name,
        "SLURM_JOB_USER": environment.get("USER", ""),
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_SUBMIT_HOST": "localhost",
        "SLURM_SUBMIT_DIR": str(launch.submit_dir or launch.cwd),
    }
    job |= layout.slurm_variables(launch.layout, launch.script)
    if launch.world_size and launch.script is None and not layout.is_launched(launch.command):
        rank = launch.world_size // 2 if middle else 0
        job |= layout.worker_variables(launch.world_size, rank, launch.layout.gpus)
    if launch.script and launch.script.partition:
        job["SLURM_JOB_PARTITION"] = launch.script.partition
    for option in ("account", "qos", "reservation"):
        if launch.script and (value := launch.script.options.get(option)):
            job[f"SLURM_JOB_{option.upper()}"] = value
    if launch.array is not None:
        index = launch.array.first if launch.array_task is None else launch.array_task
        job |= {"SLURM_ARRAY_JOB_ID": JOB_ID, **launch.array.variables(index)}
    if temporary := _temporary(kept):
        job["TMPDIR"] = temporary
    job["SLURM_TMPDIR"] = job.get("TMPDIR") or kept.get("TMPDIR") or "/tmp"  # noqa: S108 - in the sandbox
    polite = {"OMP_NUM_THREADS": str(min(4, os.cpu_count() or 1))}  # on a login node that others use as well
    return polite | kept | OFFLINE | job


def exported(environment: Mapping[str, str], export: str) -> dict[str, str]:
    """What `sbatch --export` passes on of the user's environment, with what every login has."""
    words = export.split(",")
    found: dict[str, str] = {}
    if _is_anew(export):
        found = {name: environment[name] for name in LOGIN if name in environment} | {"PATH": LOGIN_PATH}
    for word in words:
        name, equals, value = word.partition("=")
        if word.upper() == "ALL":
            found |= environment
        elif equals:
            found[name] = value
        elif name in environment:
            found[name] = environment[name]
    return found


def _is_anew(export: str | None) -> bool:
    """Whether a job does not take over the user's environment."""
    return bool(export) and "ALL" not in (export or "").upper().split(",")


def _temporary(environment: Mapping[str, str]) -> str | None:
    """Another TMPDIR, if that of the user is only on compute nodes."""
    own = environment.get("TMPDIR")
    return "/tmp" if own and not Path(own).is_dir() else None  # noqa: S108 - in the sandbox


def _writable(cwd: Path, environment: Mapping[str, str]) -> list[Path]:
    """Where a job usually writes; the dry run may, too, and nothing of it stays."""
    named = [Path(value) for name in WRITABLE if (value := environment.get(name))]
    return [cwd, Path("/tmp"), Path("/var/tmp"), *(place for place in named if place.is_absolute())]  # noqa: S108
