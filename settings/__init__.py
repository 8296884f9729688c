"""`gpumem.toml` as typed models: one section for each program, every key with its default and its meaning."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

DEFAULT_PATH = Path("/etc/gpumem/gpumem.toml")

MIB = 1024**2
GIB = 1024**3


class SettingsError(Exception):
    """The configuration cannot be used; the text names the file, the key and what is wrong with it."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Service(_Section):
    """The service `gpumemd` on the controller."""

    submit_socket: Path = Field(
        default=Path("/run/gpumem/submit.sock"), description="asked by job_submit.lua; mode 0600"
    )
    user_socket: Path = Field(
        default=Path("/run/gpumem/gpumem.sock"), description="asked by users' commands; mode 0666"
    )
    listen: str = Field(
        default="", description="HOST:PORT for compute and login nodes (MUNGE credentials); empty: none"
    )
    state_dir: Path = Field(
        default=Path("/var/lib/gpumem"), description="job scripts and results of running traces"
    )
    admins: tuple[str, ...] = Field(default=("root",), description="users who see everybody's jobs")
    tracers: Annotated[int, Field(ge=0, description="traces at the same time; 0: one per core")] = 0


class History(_Section):
    """The history database."""

    url: str = Field(default="sqlite:////var/lib/gpumem/history.db", description="SQLAlchemy URL")


class Defer(_Section):
    """What happens to a job whose script is not known yet."""

    enabled: bool = Field(
        default=True, description="hold such a job while it is traced; false: it passes and is traced beside"
    )
    budget_s: Annotated[
        int, Field(ge=5, le=3600, description="the job starts on a whole GPU after so many seconds")
    ] = 120


class Slurm(_Section):
    """How Slurm is reached."""

    backend: Literal["scontrol"] = Field(default="scontrol", description="how jobs are found and updated")
    conf: Path | None = Field(default=None, description="slurm.conf; default: Slurm's own")
    munge_socket: Path | None = Field(default=None, description="socket of munged; default: MUNGE's own")


class Estimate(_Section):
    """How an estimate is made and rounded."""

    steps: Annotated[int, Field(ge=1, le=1000, description="optimizer steps to trace")] = 3
    ranks: Annotated[
        int,
        Field(ge=1, le=2, description="ranks of a distributed job to trace"),
    ] = 2
    timeout_s: Annotated[int, Field(ge=1, le=3600, description="wall time of a traced run")] = 100
    memory_mib: Annotated[int, Field(ge=256, description="host memory of a traced run, MiB")] = 8192
    require_containment: bool = Field(
        default=True,
        description="false: where there are no user namespaces, a script is traced with a weaker containment",
    )
    margin: Annotated[
        float, Field(ge=0, le=1, description="added to the estimated peak, as a fraction of it")
    ] = 0.03
    margin_bounded: Annotated[
        float, Field(ge=0, le=1, description="the fraction if the estimate is bounded")
    ] = 0.12
    selected_fraction: Annotated[
        float,
        Field(gt=0, le=1, description="how much of the most that a mask can select it is taken to select"),
    ] = 1.0
    margin_mib: Annotated[int, Field(ge=0, description="the margin is at least this, MiB")] = 256
    margin_from_history: bool = Field(
        default=True,
        description="true: gpumemd takes the margin that keeps the risk by what earlier jobs needed, once it "
        "knows enough of them, and the margin above until then; false: always the margin above",
    )
    risk: Annotated[
        float, Field(gt=0, le=0.5, description="share of jobs that may need more than estimate and margin")
    ] = 0.01
    reserve: Literal["peak", "least"] = Field(
        default="peak",
        description="memory that is recommended: what the job takes if it may (peak), or the least it runs "
        "in when PyTorch is held to that (least: slower, and it fails if the trace missed something)",
    )
    shard_mib: Annotated[int, Field(ge=1, description="GPU memory that one shard stands for, MiB")] = 1024
    gpus_file: Path | None = Field(
        default=None, description="GPU catalogue; default: the one installed with gpumem"
    )


class Guard(_Section):
    """The memory guard: PyTorch is told how much of its GPU a job got."""

    enabled: bool = Field(
        default=False,
        description="true: jobs that are known when they are submitted are held to their shards, where "
        "PyTorch knows how (2.11 or newer)",
    )


class Requeue(_Section):
    """What happens to a job that runs out of GPU memory in its part of a GPU."""

    enabled: bool = Field(
        default=True, description="true: it runs again, once, on a whole GPU, if Slurm may requeue it"
    )
    within_s: Annotated[
        int, Field(ge=0, description="only if it ran for so many seconds at most: the work is done again")
    ] = 1800


class Measurement(_Section):
    """Prolog, epilog and sampler on the compute nodes."""

    enabled: bool = Field(default=True, description="false: prolog and epilog do nothing")
    service: str = Field(
        default="unix:/run/gpumem/gpumem.sock", description="unix:PATH or http://HOST:PORT of gpumemd"
    )
    spool_dir: Path = Field(
        default=Path("/var/spool/gpumem"), description="measurements wait here for the service"
    )
    fallback_dir: Path = Field(
        default=Path("/run/gpumem/spool"), description="used while spool_dir cannot be written"
    )
    run_dir: Path = Field(
        default=Path("/run/gpumem/jobs"), description="what the sampler of a running job knows"
    )
    sample_interval_s: Annotated[float, Field(gt=0, le=60, description="seconds between two samples")] = 1.0
    timeout_s: Annotated[float, Field(gt=0, le=10, description="longest wait for the service")] = 0.5


class Partition(_Section):
    """A Slurm partition whose jobs may be rewritten."""

    enabled: bool = Field(default=True, description="false: jobs of this partition always pass unchanged")
    gpu: str = Field(description="the GPU model of its nodes, as named in the catalogue")
    shards_per_gpu: Annotated[int, Field(ge=1, description="shards that gres.conf gives one GPU")]
    observe: bool = Field(
        default=False,
        description="true: jobs pass unchanged; the history tells what they would have got and took",
    )


class Settings(_Section):
    """The whole of `gpumem.toml`."""

    service: Service = Service()
    history: History = History()
    defer: Defer = Defer()
    slurm: Slurm = Slurm()
    estimate: Estimate = Estimate()
    guard: Guard = Guard()
    requeue: Requeue = Requeue()
    measurement: Measurement = Measurement()
    partitions: dict[str, Partition] = {}


def load(path: Path | None = None) -> Settings:
    """Reads the settings from `path`, else `$GPUMEM_CONFIG`, else `/etc/gpumem/gpumem.toml` (may be absent).

    Raises:
        SettingsError: the file is missing, is not TOML, or has a key or value that is not understood.
    """
    named = path or (Path(value) if (value := os.environ.get("GPUMEM_CONFIG")) else None)
    source = named or DEFAULT_PATH
    try:
        text = source.read_text(encoding="utf-8")
    except FileNotFoundError:
        if named is None:
            return Settings()
        raise SettingsError(f"{source}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{source}: cannot be read: {error}") from None
    return parse(text, source)


def parse(text: str, source: Path) -> Settings:
    """Checks the text of a configuration file; `source` is named in errors.

    Raises:
        SettingsError: as `load`.
    """
    try:
        return Settings.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{source}: not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        problem = "unknown key" if first["type"] == "extra_forbidden" else first["msg"]
        raise SettingsError(f"{source}: {key}: {problem}") from None
