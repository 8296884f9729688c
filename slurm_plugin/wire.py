"""What job_submit.lua asks gpumemd, what it is answered, and what an estimate looks like when it comes back.

All of it is read from bytes that a user can influence, so every text, list and number is bounded.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Action = Literal["pass", "rewrite", "defer"]

_BYTES = Annotated[int, Field(ge=0, le=2**53)]
_COUNT = Annotated[int, Field(ge=0, lt=2**32)]


_Text = Annotated[str, Field(max_length=4096)]


class Submission(BaseModel):
    """A batch job as it was submitted: `POST /v1/submissions`. Absent fields were not set by the user."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    v: Literal[1]
    uid: Annotated[int, Field(ge=0, lt=2**32)]
    user_name: _Text | None = None
    partition: _Text | None = None
    tres_per_node: _Text = ""
    tres_per_job: _Text = ""
    tres_per_task: _Text = ""
    tres_per_socket: _Text = ""
    mem_per_tres: _Text = ""
    cpus_per_tres: _Text = ""
    tres_freq: _Text = ""
    tres_bind: _Text = ""
    num_tasks: _COUNT | None = None
    ntasks_per_node: _COUNT | None = None
    ntasks_per_tres: _COUNT | None = None
    min_nodes: _COUNT | None = None
    max_nodes: _COUNT | None = None
    shared: _COUNT | None = None
    het_job_offset: _COUNT | None = None
    begin_time: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        default=None, description="unix time; --begin"
    )
    comment: _Text | None = None
    name: _Text | None = None
    account: _Text | None = None
    qos: _Text | None = None
    features: _Text | None = None
    array_inx: _Text | None = None
    work_dir: str | None = Field(None, max_length=4096)
    script: str | None = Field(None, max_length=512 * 1024)
    argv: Annotated[list[str], Field(max_length=10_000)] = []
    environment: Annotated[dict[str, str], Field(max_length=1000)] = {}
    too_long: bool = Field(default=False, description="script or arguments were longer than what is sent")
    utf8: bool = Field(
        default=True, description="false: some text was not UTF-8 and is not what the user wrote"
    )


class Reply(BaseModel):
    """Answer to a submission."""

    model_config = ConfigDict(frozen=True)

    action: Action
    decision_id: str
    set: dict[str, str] = {}
    begin_in_s: int | None = None
    environment: dict[str, str] = Field({}, description="variables that are overwritten where they are set")
    export: dict[str, str] = Field({}, description="variables that are set")
    admin_comment: str | None = None
    message: str | None = None


class Input(BaseModel):
    """A file that the traced run read, as it was then, or missed (no `mtime_ns`); `sha256` of small ones."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    path: Annotated[str, Field(max_length=4096)]
    size: _BYTES
    mtime_ns: int | None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None


class Guarded(BaseModel):
    """In which shares of a GPU the job runs under the memory guard; see `estimator.guard.Guard`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    alloc_conf: _Text
    peak_shards: Annotated[int, Field(ge=1, le=2**20)]
    shards: Annotated[tuple[Annotated[int, Field(ge=1, le=2**20)], ...], Field(max_length=1000)]


class Estimated(BaseModel):
    """What `gpumem estimate --json` says: the part of it that a decision needs."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    status: Literal["exact", "bounded"]
    peak_bytes: _BYTES
    reserved_peak_bytes: _BYTES
    recommended_bytes: _BYTES | None = None
    shards: Annotated[int, Field(ge=1, le=2**20)] | None = None
    gpu: Annotated[str, Field(max_length=200)]
    fits: bool
    outside_allocator_bytes: _BYTES = 0
    least_bytes: _BYTES | None = None
    torch_version: Annotated[str, Field(max_length=200)] | None = None
    guard: Guarded | None = None
    inputs: Annotated[list[Input], Field(max_length=5000)] = []
    job_name: Annotated[str, Field(max_length=4096)] | None = Field(
        default=None, description="the job's name, if its programs ask for it: the estimate is for no other"
    )


class Failure(BaseModel):
    """What `gpumem estimate --json` says when there is no estimate."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    status: Literal["failed"]
    reason: Annotated[str, Field(min_length=1, max_length=20_000)]
    inputs: Annotated[list[Input], Field(max_length=5000)] = []


def read_submission(body: bytes) -> Submission:
    """Reads a request's body.

    Raises:
        ValueError: no JSON object of a submission (pydantic's ValidationError is one).
    """
    if b"\\u0000" in body:
        raise ValueError("a text holds a NUL byte")
    try:
        text, utf8 = body.decode(), True
    except UnicodeDecodeError:
        text, utf8 = body.decode(errors="replace"), False
    try:
        fields = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if isinstance(fields, dict):
        fields["utf8"] = utf8
    return Submission.model_validate(fields)
