"""What the programs tell each other about jobs: measurements, and the rows of the history.

Everything here is read from bytes that are not trusted, so every text and number is bounded. A field that a
newer program adds is ignored. An unknown value is null, never 0.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, RootModel

MAX_BATCH = 256
"""Most measurements in one request."""

MAX_GPUS = 64
MAX_PROBLEMS = 32
MAX_PROBLEM_LENGTH = 300
MAX_ROWS = 10_000
"""Most rows of the history in one answer."""

_MAX_INTEGER = 2**53  # every JSON reader keeps integers up to here
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9000, 1, 1, tzinfo=UTC)


def _in_utc(moment: datetime) -> datetime:
    if not _EARLIEST <= moment < _LATEST:
        raise ValueError("not a time between 1970 and 9000")
    return moment.astimezone(UTC)


def _clipped(problems: Any) -> Any:
    """Cuts what is too long: a wordy error message must not cost the measurement it comes with."""
    if not isinstance(problems, list):
        return problems
    return [p[:MAX_PROBLEM_LENGTH] if isinstance(p, str) else p for p in problems[:MAX_PROBLEMS]]


UtcDatetime = Annotated[AwareDatetime, AfterValidator(_in_utc)]
Integer = Annotated[int, Field(strict=True, ge=0, le=_MAX_INTEGER)]
JobId = Annotated[int, Field(strict=True, ge=1, lt=2**32)]
UserId = Annotated[int, Field(strict=True, ge=0, lt=2**32)]
ExitCode = Annotated[int, Field(strict=True, ge=-(2**31), lt=2**31)]
Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]
MeasurementId = Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
Problem = Annotated[str, Field(max_length=MAX_PROBLEM_LENGTH, pattern=r"^[^\x00]*$")]
Source = Literal["accounting", "sampling", "both"]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class GpuMeasurement(_Wire):
    """One GPU as one job used it."""

    uuid: Name = Field(description="as NVML names it: GPU-… or MIG-…")
    model: Name | None = None
    memory_bytes: Annotated[int, Field(strict=True, gt=0, le=_MAX_INTEGER)] | None = None
    peak_bytes: Integer | None = Field(
        None, description="most that the job's processes held on this GPU at once"
    )
    source: Source | None = Field(default=None, description="where peak_bytes comes from")
    processes: Integer | None = Field(default=None, description="processes of the job seen on this GPU")
    shared: bool | None = Field(
        default=None, description="whether other jobs were seen on this GPU meanwhile"
    )


class Measurement(_Wire):
    """What one job did on the GPUs of one node, from prolog to epilog; `id` is made once, on the node."""

    id: MeasurementId = Field(default_factory=lambda: str(uuid4()))
    cluster: Name | None = None
    job_id: JobId
    node: Name
    user_id: UserId | None = None
    gpus: Annotated[list[GpuMeasurement], Field(max_length=MAX_GPUS)]
    started_at: UtcDatetime | None = Field(default=None, description="null if the prolog left no trace")
    ended_at: UtcDatetime
    exit_code: ExitCode | None = Field(
        default=None, description="wait status as Slurm gives it to the epilog"
    )
    samples: Integer | None = None
    problems: Annotated[list[Problem], BeforeValidator(_clipped)] = []


class Measurements(RootModel[Annotated[list[Measurement], Field(max_length=MAX_BATCH)]]):
    """Body of `POST /v1/measurements`: a JSON list."""


class Accepted(_Wire):
    """Answer to `POST /v1/measurements`: the ids that are safe in the database, new or seen before."""

    accepted: Annotated[list[MeasurementId], Field(max_length=MAX_BATCH)]


class EndedQuery(_Wire):
    """Query of `GET /v1/ended`."""

    job_id: Annotated[int, Field(ge=1, lt=2**32)]


class JobsQuery(_Wire):
    """Query of `GET /v1/jobs`."""

    user: Name | None = None
    since: UtcDatetime | None = None
    script: Name | None = Field(default=None, description="part of the script's name")
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 50


class JobRecord(_Wire):
    """One job of the history: what was asked, given, estimated and measured."""

    job_id: JobId | None = None
    decision_id: str | None = Field(default=None, description="null: gpumem was not asked about this job")
    submitted_at: UtcDatetime | None = None
    started_at: UtcDatetime | None = None
    user_id: UserId | None = None
    user_name: str | None = None
    job_name: str | None = None
    partition: str | None = None
    script: str | None = None
    asked: str | None = None
    got: str | None = None
    action: str | None = None
    state: str | None = None
    reason: str | None = None
    held_s: float | None = None
    gpu: str | None = Field(default=None, description="GPU model, as measured, else as estimated for")
    estimate_status: str | None = None
    estimated_peak_bytes: Integer | None = None
    recommended_bytes: Integer | None = None
    measured_peak_bytes: Integer | None = Field(default=None, description="greatest peak on one GPU")
    measured_source: Source | None = None
    shared: bool | None = Field(
        default=None, description="whether other jobs were seen on its GPUs meanwhile"
    )
    error: float | None = Field(
        default=None, description="(estimated - measured) / measured; above 0: estimated too high"
    )
    node: str | None = None
    exit_code: ExitCode | None = None
    promised_bytes: Integer | None = Field(default=None, description="estimate and margin")
    limit_bytes: Integer | None = Field(default=None, description="what the memory guard holds it to")
    out_of_memory: bool | None = Field(
        default=None, description="whether it failed because GPU memory ran out, as it said itself"
    )
    problems: list[str] = []


class Jobs(_Wire):
    """Answer to `GET /v1/jobs`: newest first."""

    jobs: Annotated[list[JobRecord], Field(max_length=MAX_ROWS)]


class JobDetail(_Wire):
    """Answer to `GET /v1/jobs/ID`."""

    job: JobRecord
    estimate: dict[str, Any] | None = Field(
        default=None,
        description="the object of `gpumem estimate --json`, without `inputs`; null: there is no estimate",
    )


class CalibratedGroup(_Wire):
    """What was learned about the margin of some jobs; see `history.calibration.Summary`."""

    gpu: str
    status: str
    kind: str
    scores: Integer = Field(description="measured jobs that count")
    score: float | None = Field(
        default=None, description="the margin in units of 256 MiB + 3 % of the estimate; null: too few jobs"
    )
    judged: Integer = Field(description="jobs that ended since a margin is known")
    misses: Integer = Field(description="of these, those that needed more than their bound")
    promised: Integer = Field(description="jobs that were given a bound when they were submitted")
    broken: Integer = Field(description="of these, those that needed more")


class Calibrated(_Wire):
    """Answer to `GET /v1/calibration`: the margins as of now; `risk`: share of jobs that may need more."""

    risk: float
    groups: Annotated[list[CalibratedGroup], Field(max_length=MAX_ROWS)]
