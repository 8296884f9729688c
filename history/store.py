"""The history database: SQLite, or PostgreSQL or MariaDB by URL. Safe to use from several threads."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypedDict, Unpack

from sqlalchemy import (
    ColumnElement,
    Engine,
    ScalarSelect,
    and_,
    create_engine,
    event,
    exists,
    func,
    or_,
    select,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session, aliased

from history.models import Decision, Estimate, MeasuredGpu, MeasuredJob
from history.outcomes import Outcome
from history.records import decided_record, measured_record
from history.wire import JobDetail, JobRecord, Measurement

CLOCK_SKEW = timedelta(minutes=5)
"""How far the clock of a compute node may be behind the controller's."""

_DRIVER_HINT = "install the database's Python driver, such as psycopg or pymysql"


class StoreError(Exception):
    """The database cannot be opened, read or written; the text says why."""


class DecisionChanges(TypedDict, total=False):
    """What of a decision may change after the submission."""

    action: str
    state: str
    reason: str | None
    got: str | None
    job_id: int | None
    estimate_id: str | None
    held_s: float | None
    needed_bytes: int | None
    promised_bytes: int | None
    limit_bytes: int | None
    out_of_memory: bool | None
    request: dict[str, Any] | None


class Store:
    """Decisions, estimates and measurements. What its methods return is detached: changing it changes no row.

    Every method raises `StoreError` when the database fails; then nothing of the call was stored.
    """

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        """Opens the database at the SQLAlchemy `url`; a new SQLite file is made with mode 0600."""
        try:
            parsed = make_url(url)
            if parsed.get_backend_name() == "sqlite":
                self._engine = _sqlite(parsed, read_only)
            else:
                self._engine = create_engine(parsed, hide_parameters=True, pool_pre_ping=True)
        except ImportError as error:
            raise StoreError(f"history.url: {error}: {_DRIVER_HINT}") from None
        except SQLAlchemyError as error:
            raise StoreError(f"history.url: {error}") from None

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def migrate(self) -> None:
        """Brings the tables to this version's, from nothing or from any earlier version."""
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError

        config = Config()
        config.set_main_option(
            "script_location", str(Path(__file__).parent / "migrations").replace("%", "%%")
        )
        try:
            with self._engine.begin() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except CommandError as error:
            raise StoreError(f"the history database was made by a newer gpumem: {error}") from None
        except SQLAlchemyError as error:
            raise StoreError(_reason(error)) from error

    def add_decision(self, *decisions: Decision) -> None:
        """Stores new decisions, all or none."""
        with self._session() as session:
            session.add_all(decisions)

    def update_decision(self, decision_id: str, **changes: Unpack[DecisionChanges]) -> None:
        """Changes fields of a stored decision.

        Raises:
            LookupError: there is no such decision.
        """
        with self._session() as session:
            decision = session.get(Decision, decision_id)
            if decision is None:
                raise LookupError(f"no decision {decision_id}")
            for name, value in changes.items():
                setattr(decision, name, value)

    def decisions_in_state(self, states: Collection[str]) -> list[Decision]:
        """The decisions in one of `states`, oldest first."""
        query = select(Decision).where(Decision.state.in_(states)).order_by(Decision.created_at, Decision.id)
        with self._session() as session:
            return list(session.scalars(query))

    def decision_of_job(self, job_id: int) -> Decision | None:
        """The latest decision about a job of this id."""
        query = (
            select(Decision).where(Decision.job_id == job_id).order_by(Decision.created_at.desc()).limit(1)
        )
        with self._session() as session:
            return session.scalar(query)

    def add_estimate(self, estimate: Estimate) -> str:
        """Stores a new estimate and returns its id."""
        with self._session() as session:
            session.add(estimate)
        return estimate.id

    def latest_estimates(self, limit: int = 10_000) -> list[Estimate]:
        """The latest estimate of every fingerprint, newest first."""
        age = (
            func.row_number()
            .over(partition_by=Estimate.fingerprint, order_by=(Estimate.created_at.desc(), Estimate.id))
            .label("age")
        )
        ranked = select(Estimate.id, age).subquery()
        query = (
            select(Estimate)
            .join(ranked, ranked.c.id == Estimate.id)
            .where(ranked.c.age == 1)
            .order_by(Estimate.created_at.desc(), Estimate.id)
            .limit(limit)
        )
        with self._session() as session:
            return list(session.scalars(query))

    def add_measurements(self, measurements: Sequence[Measurement]) -> list[str]:
        """Stores what is new of `measurements`, all or none; returns the ids of all: they are safe now."""
        by_id = {measurement.id: measurement for measurement in reversed(measurements)}
        try:
            self._add_missing(by_id)
        except StoreError as error:
            if not isinstance(error.__cause__, IntegrityError):
                raise
            self._add_missing(by_id)  # another writer stored one of them between our look and our insert
        return list(by_id)

    def _add_missing(self, by_id: dict[str, Measurement]) -> None:
        with self._session() as session:
            known = set(session.scalars(select(MeasuredJob.id).where(MeasuredJob.id.in_(by_id))))
            session.add_all(_rows_of(by_id[key]) for key in by_id.keys() - known)

    def note_arrays(self, array_job_ids: Mapping[str, int]) -> None:
        """Stores of which arrays measured jobs were tasks, by the ids of the measurements."""
        with self._session() as session:
            for run in session.scalars(select(MeasuredJob).where(MeasuredJob.id.in_(array_job_ids))):
                run.array_job_id = array_job_ids[run.id]

    def jobs(
        self,
        user_id: int | None,
        user_name: str | None = None,
        since: datetime | None = None,
        script: str | None = None,
        limit: int = 50,
    ) -> list[JobRecord]:
        """The jobs submitted (or, if gpumem was not asked about them, started) since then, newest first.

        Args:
            user_id: only this user's jobs; None: everybody's. The caller answers for who may see what.
            user_name: only jobs of the user of this name.
            since: None: from the beginning.
            script: a part of the script's name.
            limit: at most so many jobs.
        """
        with self._session() as session:
            rows = _decided_jobs(session, user_id, user_name, since, script, limit)
            if script is None:
                rows += _measured_jobs(session, user_id, user_name, since, limit)
        rows.sort(key=lambda row: row[0], reverse=True)
        return [record for _, record in rows[:limit]]

    def job(self, job_id: int, user_id: int | None) -> JobDetail | None:
        """The last job of this id, with its estimate; None: no such job, or not one of this user's.

        Args:
            job_id: of a job array, its own and not a task's.
            user_id: None: anybody's. The caller answers for who may see what.
        """
        with self._session() as session:
            rows = _decided_jobs(session, user_id, None, None, None, 1, job_id)
            rows += _measured_jobs(session, user_id, None, None, 1, job_id)
            if not rows:
                return None
            _, record = max(rows, key=lambda row: row[0])
            decision = session.get(Decision, record.decision_id) if record.decision_id else None
            made = session.get(Estimate, decision.estimate_id) if decision and decision.estimate_id else None
        detail = {key: value for key, value in made.detail.items() if key != "inputs"} if made else None
        return JobDetail(job=record, estimate=detail)

    def outcomes(self, limit: int) -> list[Outcome]:
        """Of the last `limit` measured runs, those on one GPU with an estimate, as they ended."""
        last = (
            select(MeasuredJob.id)
            .order_by(MeasuredJob.ended_at.desc(), MeasuredJob.id)
            .limit(limit)
            .subquery()
        )
        further = aliased(MeasuredGpu)
        query = (
            select(
                Decision.fingerprint,
                Decision.user_id,
                Decision.script_name,
                Decision.needed_bytes,
                Decision.promised_bytes,
                Decision.limit_bytes,
                Decision.out_of_memory,
                Estimate.gpu.label("estimated_gpu"),
                Estimate.status,
                Estimate.peak_bytes.label("estimated_bytes"),
                MeasuredGpu.model.label("measured_gpu"),
                MeasuredGpu.peak_bytes,
                MeasuredGpu.source,
                MeasuredGpu.processes,
                MeasuredJob.samples,
                MeasuredJob.exit_code,
            )
            .select_from(last)
            .join(MeasuredJob, MeasuredJob.id == last.c.id)
            .join(MeasuredGpu, MeasuredGpu.measurement_id == MeasuredJob.id)
            .join(Decision, and_(Decision.job_id == _submitted(), Decision.id == _owner()))
            .join(Estimate, Estimate.id == Decision.estimate_id)
            .where(~exists().where(further.measurement_id == MeasuredJob.id, further.position > 0))
            .order_by(MeasuredJob.ended_at, MeasuredJob.id)
        )
        with self._session() as session:
            return [Outcome(**row) for row in session.execute(query).mappings()]

    @contextmanager
    def _session(self) -> Iterator[Session]:
        """A transaction: committed at the end, rolled back on any error."""
        try:
            with Session(self._engine, expire_on_commit=False) as session, session.begin():
                yield session
        except SQLAlchemyError as error:
            raise StoreError(_reason(error)) from error


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite URL; None for another database.

    Raises:
        StoreError: it is not a URL.
    """
    try:
        parsed = make_url(url)
    except SQLAlchemyError as error:
        raise StoreError(f"history.url: {error}") from None
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None


def _sqlite(url: URL, read_only: bool) -> Engine:
    if not url.database or url.database == ":memory:":
        raise StoreError("history.url: a file is needed, such as sqlite:////var/lib/gpumem/history.db")
    file = Path(url.database)
    try:
        if read_only:
            file.open("rb").close()
        else:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreError(f"{file}: cannot be opened: {error.strerror}") from None
    engine = create_engine(url, hide_parameters=True, connect_args={"timeout": 10})

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys=ON")
        if read_only:
            cursor.execute("PRAGMA query_only=ON")
        else:
            cursor.execute("PRAGMA journal_mode=WAL")  # readers do not wait for the writer
            cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()

    return engine


def _reason(error: SQLAlchemyError) -> str:
    """One line, without the statement and its values."""
    text = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return f"history database: {text.strip().splitlines()[0] if text.strip() else type(error).__name__}"


def _rows_of(measurement: Measurement) -> MeasuredJob:
    fields = measurement.model_dump(exclude={"gpus"})
    gpus = [
        MeasuredGpu(position=position, **gpu.model_dump()) for position, gpu in enumerate(measurement.gpus)
    ]
    began = measurement.started_at or measurement.ended_at
    return MeasuredJob(**fields, submitted_before=began + CLOCK_SKEW, gpus=gpus)


_Row = tuple[datetime, JobRecord]


def _decided_jobs(
    session: Session,
    user_id: int | None,
    user_name: str | None,
    since: datetime | None,
    script: str | None,
    limit: int,
    job_id: int | None = None,
) -> list[_Row]:
    query = (
        select(Decision, Estimate)
        .outerjoin(Estimate, Estimate.id == Decision.estimate_id)
        .order_by(Decision.created_at.desc(), Decision.id)
        .limit(limit)
    )
    if user_id is not None:
        query = query.where(Decision.user_id == user_id)
    if user_name is not None:
        query = query.where(Decision.user_name == user_name)
    if since is not None:
        query = query.where(Decision.created_at >= since)
    if script is not None:
        query = query.where(Decision.script_name.contains(script, autoescape=True))
    if job_id is not None:
        query = query.where(Decision.job_id == job_id)
    found = session.execute(query).all()
    runs = _runs(session, {decision.job_id for decision, _ in found if decision.job_id is not None})
    return [(d.created_at, decided_record(d, estimate, runs.get(d.id, []))) for d, estimate in found]


def _runs(session: Session, job_ids: Collection[int]) -> dict[str, list[MeasuredJob]]:
    """What was measured of these jobs, by the id of the decision it belongs to."""
    ids = [*job_ids]
    query = (
        select(_owner(), MeasuredJob)
        .where(or_(MeasuredJob.job_id.in_(ids), MeasuredJob.array_job_id.in_(ids)))
        .order_by(MeasuredJob.ended_at)
    )
    runs: dict[str, list[MeasuredJob]] = {}
    for decision_id, run in session.execute(query):
        runs.setdefault(decision_id, []).append(run)
    return runs


def _submitted() -> ColumnElement[int]:
    """The id of the job that was submitted: of a task of an array, the array's."""
    return func.coalesce(MeasuredJob.array_job_id, MeasuredJob.job_id)


def _owner() -> ScalarSelect[str]:
    """The id of the decision that a run belongs to: the last one about its job id before it began."""
    other = aliased(Decision)
    return (
        select(other.id)
        .where(other.job_id == _submitted(), other.created_at <= MeasuredJob.submitted_before)
        .order_by(other.created_at.desc())
        .limit(1)
        .correlate(MeasuredJob)
        .scalar_subquery()
    )


def _measured_jobs(
    session: Session,
    user_id: int | None,
    user_name: str | None,
    since: datetime | None,
    limit: int,
    job_id: int | None = None,
) -> list[_Row]:
    """Jobs that were measured, but that gpumem was not asked about: one row for each node and start."""
    began = func.coalesce(MeasuredJob.started_at, MeasuredJob.ended_at)
    decided = exists().where(
        Decision.job_id == _submitted(), Decision.created_at <= MeasuredJob.submitted_before
    )
    query = select(MeasuredJob).where(~decided).order_by(MeasuredJob.ended_at.desc()).limit(limit)
    if user_id is not None:
        query = query.where(MeasuredJob.user_id == user_id)
    if user_name is not None:
        query = query.where(MeasuredJob.user_id == _user_id(user_name))
    if since is not None:
        query = query.where(began >= since)
    if job_id is not None:
        query = query.where(MeasuredJob.job_id == job_id)
    return [
        (run.started_at or run.ended_at, measured_record([run], _user_name(run.user_id)))
        for run in session.scalars(query)
    ]


def _user_id(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def _user_name(user_id: int | None) -> str | None:
    try:
        return None if user_id is None else pwd.getpwuid(user_id).pw_name
    except KeyError:
        return None
