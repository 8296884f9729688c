"""Tables of the history database: decisions, estimates, measurements.

Types are chosen so that SQLite, PostgreSQL and MariaDB behave alike: bounded texts, UTC times, 64-bit sizes.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Double, ForeignKey, Index, MetaData, String
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column, relationship
from sqlalchemy.types import TypeDecorator


def now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)


def new_id() -> str:
    """A short random id (hex, 64 bits)."""
    return secrets.token_hex(8)


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC to the microsecond; a naive time is refused."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        """MariaDB would drop the fraction of a second."""
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime())

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To what is stored: UTC without a zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no time zone")
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """From what is stored."""
        return None if value is None else value.replace(tzinfo=UTC)


class Label(TypeDecorator[str]):
    """A text for people, cut to its length; what no database holds (NUL, half a surrogate) becomes `?`."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """To what is stored."""
        if value is None:
            return None
        length = self.impl_instance.length  # type: ignore[attr-defined]
        return value[:length].replace("\0", "?").encode("utf-8", "replace").decode()


class Base(MappedAsDataclass, DeclarativeBase):
    """Base of all tables; constraints have names, so that migrations can change them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Estimate(Base, kw_only=True):
    """What `gpumem estimate` said about a script; unknown numbers are null."""

    __tablename__ = "estimates"
    __table_args__ = (Index(None, "fingerprint", "created_at"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default_factory=new_id)
    fingerprint: Mapped[str] = mapped_column(String(64))
    gpu: Mapped[str | None] = mapped_column(Label(255))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default_factory=now)
    status: Mapped[str] = mapped_column(String(16))
    """exact, bounded or failed."""
    peak_bytes: Mapped[int | None] = mapped_column(BigInteger, default=None)
    reserved_peak_bytes: Mapped[int | None] = mapped_column(BigInteger, default=None)
    recommended_bytes: Mapped[int | None] = mapped_column(BigInteger, default=None)
    shards: Mapped[int | None] = mapped_column(default=None)
    detail: Mapped[dict[str, Any]] = mapped_column(JSON, repr=False, default_factory=dict)
    """The whole object that `gpumem estimate --json` printed."""
    inputs: Mapped[list[dict[str, Any]]] = mapped_column(JSON, repr=False, default_factory=list)
    """The files it depends on: path, size, mtime_ns."""


class Decision(Base, kw_only=True):
    """What `gpumemd` made of one submission; states are listed in docs/architecture.md."""

    __tablename__ = "decisions"
    __table_args__ = (
        Index(None, "job_id", "created_at"),
        Index(None, "user_id", "created_at"),
        Index(None, "state"),
        Index(None, "created_at"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True, default_factory=new_id)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default_factory=now)
    user_id: Mapped[int] = mapped_column(BigInteger)
    user_name: Mapped[str | None] = mapped_column(Label(255), default=None)
    job_name: Mapped[str | None] = mapped_column(Label(255), default=None)
    partition: Mapped[str | None] = mapped_column(Label(255), default=None)
    script_name: Mapped[str | None] = mapped_column(Label(255), default=None)
    fingerprint: Mapped[str | None] = mapped_column(String(64), default=None)
    asked: Mapped[str | None] = mapped_column(Label(255), default=None)
    """What the user asked for, such as gpu:1."""
    got: Mapped[str | None] = mapped_column(Label(255), default=None)
    """What it was changed to, such as shard:24."""
    action: Mapped[str] = mapped_column(String(16))
    """pass, rewrite or defer."""
    state: Mapped[str] = mapped_column(String(16))
    """passed, rewritten, queued, tracing, applied, released, expired or failed; requeueing and requeued:
    it ran out of memory in its part of a GPU, and is to run again, or does so, on a whole one."""
    reason: Mapped[str | None] = mapped_column(Label(1000), default=None)
    """Why it passed, or what failed."""
    job_id: Mapped[int | None] = mapped_column(BigInteger, default=None)
    estimate_id: Mapped[str | None] = mapped_column(ForeignKey("estimates.id"), default=None)
    held_s: Mapped[float | None] = mapped_column(Double, default=None)
    needed_bytes: Mapped[int | None] = mapped_column(BigInteger, default=None)
    """What was estimated of what `got` is made for: the peak, or the least that the job runs in."""
    promised_bytes: Mapped[int | None] = mapped_column(BigInteger, default=None)
    """That and its margin, before it was rounded up to shards."""
    limit_bytes: Mapped[int | None] = mapped_column(BigInteger, default=None)
    """What the memory guard holds the job to, CUDA context included; null: nothing does."""
    out_of_memory: Mapped[bool | None] = mapped_column(default=None)
    """Whether the job failed and said that GPU memory ran out; null: not known."""
    request: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True), repr=False, default=None)
    """What a trace needs after a restart of the service; no credentials."""


class MeasuredJob(Base, kw_only=True):
    """What one job did on one node (`history.wire.Measurement`)."""

    __tablename__ = "measurements"
    __table_args__ = (
        Index(None, "job_id", "submitted_before"),
        Index(None, "array_job_id"),
        Index(None, "user_id", "ended_at"),
        Index(None, "ended_at"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    cluster: Mapped[str | None] = mapped_column(Label(255))
    job_id: Mapped[int] = mapped_column(BigInteger)
    node: Mapped[str] = mapped_column(Label(255))
    user_id: Mapped[int | None] = mapped_column(BigInteger)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime] = mapped_column(UtcDateTime)
    submitted_before: Mapped[datetime] = mapped_column(UtcDateTime)
    """The job's decision is the last one before this time: job ids come again after a reset of Slurm."""
    exit_code: Mapped[int | None] = mapped_column(BigInteger)
    samples: Mapped[int | None] = mapped_column(BigInteger)
    problems: Mapped[list[str]] = mapped_column(JSON)
    array_job_id: Mapped[int | None] = mapped_column(BigInteger, default=None)
    """Of the array that it was a task of, which its decision is about; null: of none, or not known."""
    received_at: Mapped[datetime] = mapped_column(UtcDateTime, default_factory=now)
    gpus: Mapped[list[MeasuredGpu]] = relationship(
        order_by="MeasuredGpu.position", lazy="selectin", cascade="all, delete-orphan"
    )


class MeasuredGpu(Base, kw_only=True):
    """One GPU of a measurement (`history.wire.GpuMeasurement`); unknown is null."""

    __tablename__ = "measured_gpus"

    measurement_id: Mapped[str] = mapped_column(
        ForeignKey("measurements.id", ondelete="CASCADE"), primary_key=True, init=False
    )
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    uuid: Mapped[str] = mapped_column(Label(255))
    model: Mapped[str | None] = mapped_column(Label(255))
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    peak_bytes: Mapped[int | None] = mapped_column(BigInteger)
    source: Mapped[str | None] = mapped_column(String(16))
    processes: Mapped[int | None] = mapped_column(BigInteger)
    shared: Mapped[bool | None]
