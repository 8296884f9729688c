"""The history database: SQLite always, PostgreSQL and MariaDB where they are installed."""

from __future__ import annotations

import pwd
import sqlite3
import stat
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import event, text

from history.models import Base, Decision, Estimate
from history.records import signed_error
from history.store import Store, StoreError, sqlite_file
from history.wire import Measurement

GIB = 1024**3
NOON = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)


def decision(**fields):
    given = {
        "created_at": NOON,
        "user_id": 1000,
        "user_name": "alice",
        "asked": "gpu:1",
        "script_name": "train.sh",
    }
    return Decision(**(given | {"action": "rewrite", "state": "rewritten", "got": "shard:11"} | fields))


def measurement(job_id=7, peak: int | None = 10 * GIB, minutes=1.0, **fields):
    gpu = {
        "uuid": "GPU-1",
        "model": "A100",
        "memory_bytes": 80 * GIB,
        "peak_bytes": peak,
        "source": "sampling",
    }
    start = NOON + timedelta(minutes=minutes)
    given = {"node": "n1", "user_id": 1000, "started_at": start, "ended_at": start + timedelta(minutes=5)}
    return Measurement(**(given | {"job_id": job_id, "gpus": [gpu], "exit_code": 0} | fields))


def estimate(**fields):
    return Estimate(**({"fingerprint": "f" * 64, "gpu": "a100-80gb", "status": "exact"} | fields))


def test_migration_makes_exactly_the_models(any_url):
    with Store(any_url) as store:
        store.migrate()
        store.migrate()  # nothing left to do
        with store._engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": "mysql" not in any_url})
            assert compare_metadata(context, Base.metadata) == []


def test_an_earlier_database_keeps_what_it_has(any_url, monkeypatch):
    from alembic import command

    upgrade = command.upgrade
    with Store(any_url) as store:
        monkeypatch.setattr(command, "upgrade", lambda config, _: upgrade(config, "0001"))
        store.migrate()
        with store._engine.begin() as connection:
            connection.execute(
                text(
                    "INSERT INTO decisions (id, created_at, user_id, action, state, job_id) "
                    "VALUES ('d1', '2026-01-01 12:00:00', 1000, 'rewrite', 'rewritten', 7)"
                )
            )
        monkeypatch.undo()
        store.migrate()
        found = store.decision_of_job(7)
    assert (found.id, found.user_id, found.promised_bytes, found.out_of_memory) == ("d1", 1000, None, None)


def test_decision_comes_back_as_it_was(any_store):
    request = {"script": "/var/lib/gpumem/traces/1/script", "environment": {"PATH": "/bin"}}
    stored = decision(
        request=request, held_s=1.5, fingerprint="ab", partition="gpu", job_name="größe 💾", reason="because"
    )
    copy = replace(stored)
    any_store.add_decision(stored)
    assert any_store.decisions_in_state(["rewritten", "queued"]) == [copy]
    assert any_store.decisions_in_state(["queued"]) == []


def test_update_decision(any_store):
    any_store.add_decision(decision(id="d1", state="queued", got=None))
    estimate_id = any_store.add_estimate(estimate(peak_bytes=2**40))
    any_store.update_decision("d1", state="applied", job_id=2**32 - 1, got="shard:3", estimate_id=estimate_id)
    (changed,) = any_store.decisions_in_state(["applied"])
    assert (changed.job_id, changed.got, changed.estimate_id) == (2**32 - 1, "shard:3", estimate_id)
    with pytest.raises(LookupError):
        any_store.update_decision("d2", state="applied")


def test_failed_write_stores_nothing(any_store):
    any_store.add_decision(decision(id="d1"))
    with pytest.raises(StoreError):
        any_store.add_decision(decision(id="d2"), decision(id="d1"))
    with pytest.raises(StoreError):
        any_store.add_decision(decision(id="d3", estimate_id="no such estimate"))
    assert [d.id for d in any_store.decisions_in_state(["rewritten"])] == ["d1"]


def test_failed_write_can_be_tried_again_with_the_same_object(any_store):
    row = decision(id="d1", estimate_id="late")
    with pytest.raises(StoreError):
        any_store.add_decision(row)
    any_store.add_estimate(estimate(id="late"))
    any_store.add_decision(row)
    assert [d.id for d in any_store.decisions_in_state(["rewritten"])] == ["d1"]


def test_decision_of_job_is_the_latest(any_store):
    any_store.add_decision(
        decision(id="new", job_id=7, created_at=NOON),
        decision(id="old", job_id=7, created_at=NOON - timedelta(1)),
    )
    assert any_store.decision_of_job(7).id == "new"
    assert any_store.decision_of_job(8) is None


def test_texts_no_database_can_hold_are_mended(any_store):
    any_store.add_decision(decision(id="d1", job_name="a\0b\ud800c", reason="x" * 5000))
    (stored,) = any_store.decisions_in_state(["rewritten"])
    assert stored.job_name == "a?b?c"
    assert len(stored.reason) == 1000


def test_naive_times_are_refused(any_store):
    with pytest.raises(StoreError, match="no time zone"):
        any_store.add_decision(decision(created_at=datetime(2026, 1, 31)))


def test_latest_estimates_one_for_each_fingerprint(any_store):
    detail = {"status": "exact", "notes": ["ü"], "by_owner": {"parameters": 1}}
    for minute, (name, peak) in enumerate([("a", 1), ("b", 2), ("a", 3)]):
        any_store.add_estimate(
            estimate(
                fingerprint=name, peak_bytes=peak, detail=detail, created_at=NOON + timedelta(minutes=minute)
            )
        )
    latest = any_store.latest_estimates()
    assert [(e.fingerprint, e.peak_bytes) for e in latest] == [("a", 3), ("b", 2)]
    assert latest[0].detail == detail
    assert [e.fingerprint for e in any_store.latest_estimates(limit=1)] == ["a"]


def test_measurements_are_counted_once(any_store):
    first, second = measurement(), measurement()
    assert any_store.add_measurements([first, first]) == [first.id]
    assert set(any_store.add_measurements([first, second])) == {first.id, second.id}
    assert any_store.add_measurements([]) == []
    assert [job.job_id for job in any_store.jobs(None)] == [7, 7]


def test_measurements_from_many_threads_are_counted_once(any_store):
    batch = [measurement(job_id=n) for n in range(1, 21)]
    accepted: list[set[str]] = []
    threads = [
        threading.Thread(target=lambda: accepted.append(set(any_store.add_measurements(batch))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert accepted == [{m.id for m in batch}] * 4
    assert len(any_store.jobs(None)) == 20


def test_job_is_joined_with_estimate_and_measurement(any_store):
    estimate_id = any_store.add_estimate(estimate(peak_bytes=11 * GIB, recommended_bytes=12 * GIB))
    any_store.add_decision(decision(id="d1", job_id=7, estimate_id=estimate_id, held_s=4.5))
    any_store.add_measurements([measurement(problems=["nvml: accounting is off"])])
    (job,) = any_store.jobs(1000)
    assert (job.job_id, job.user_name, job.script, job.asked, job.got) == (
        7,
        "alice",
        "train.sh",
        "gpu:1",
        "shard:11",
    )
    assert (job.estimated_peak_bytes, job.measured_peak_bytes) == (11 * GIB, 10 * GIB)
    assert job.error == pytest.approx(0.1)
    assert (job.state, job.held_s, job.gpu, job.measured_source) == ("rewritten", 4.5, "A100", "sampling")
    assert (job.submitted_at, job.exit_code, job.node) == (NOON, 0, "n1")
    assert job.problems == ["nvml: accounting is off"]


def test_unknown_stays_unknown(any_store):
    any_store.add_decision(decision(id="d1", job_id=7, got=None, state="passed", action="pass"))
    any_store.add_measurements([measurement(peak=None)])
    (job,) = any_store.jobs(1000)
    assert (job.estimated_peak_bytes, job.measured_peak_bytes, job.error, job.got, job.held_s) == (None,) * 5


def test_job_that_ran_on_two_nodes_and_twice(any_store):
    any_store.add_decision(decision(id="d1", job_id=7))
    partly = measurement(minutes=30, gpus=[{"uuid": "GPU-1", "peak_bytes": 99}, {"uuid": "GPU-2"}])
    any_store.add_measurements([measurement(peak=3), measurement(peak=5, minutes=9, node="n2"), partly])
    (job,) = any_store.jobs(None)
    assert job.measured_peak_bytes == 5, "a run with a GPU of unknown peak tells nothing"


def test_tasks_belong_to_the_decision_about_their_array(any_store):
    any_store.add_decision(
        decision(id="d1", job_id=7, estimate_id=any_store.add_estimate(estimate(peak_bytes=5)))
    )
    tasks = [
        measurement(7, peak=1, minutes=1),
        measurement(8, peak=9, minutes=2),
        measurement(9, peak=4, minutes=3),
    ]
    any_store.add_measurements(tasks)
    any_store.note_arrays({tasks[1].id: 7})
    told = {(job.job_id, job.decision_id, job.measured_peak_bytes) for job in any_store.jobs(None)}
    assert told == {(7, "d1", 9), (9, None, 4)}
    assert sorted(one.peak_bytes for one in any_store.outcomes(100)) == [1, 9]


def test_reused_job_id_belongs_to_the_decision_before_it(any_store):
    any_store.add_decision(
        decision(id="old", job_id=7, created_at=NOON - timedelta(days=30)),
        decision(id="now", job_id=7, created_at=NOON),
        decision(id="later", job_id=7, created_at=NOON + timedelta(days=30)),
    )
    any_store.add_measurements(
        [measurement(peak=1, minutes=-60 * 24 * 20), measurement(peak=2, started_at=None, minutes=0)]
    )
    peaks = {job.decision_id: job.measured_peak_bytes for job in any_store.jobs(None)}
    assert peaks == {"old": 1, "now": 2, "later": None}


def test_clock_of_the_node_may_be_behind(any_store):
    any_store.add_decision(decision(id="d1", job_id=7))
    any_store.add_measurements([measurement(minutes=-2)])
    assert [job.decision_id for job in any_store.jobs(None)] == ["d1"]


def test_job_that_was_only_measured_is_listed(any_store):
    root = pwd.getpwuid(0).pw_name
    any_store.add_decision(decision(id="d1", job_id=6, created_at=NOON))
    any_store.add_measurements([measurement(job_id=7, user_id=0), measurement(job_id=8, user_id=4000000000)])
    rows = {job.job_id: job for job in any_store.jobs(None)}
    assert (rows[7].decision_id, rows[7].state, rows[7].user_name) == (None, None, root)
    assert (rows[8].user_name, rows[8].user_id) == (None, 4000000000)
    assert {job.job_id for job in any_store.jobs(None, root)} == {7}
    assert {job.job_id for job in any_store.jobs(0)} == {7}
    assert {job.job_id for job in any_store.jobs(None, script="train")} == {6}


def test_filters_and_order(any_store):
    any_store.add_decision(
        *(
            decision(
                id=f"d{n}",
                job_id=n,
                created_at=NOON + timedelta(hours=n),
                user_id=1000 + n % 2,
                user_name=("alice", "bob")[n % 2],
                script_name=f"train_{n}.sh",
            )
            for n in range(1, 7)
        )
    )

    def ids(*args, **kwargs):
        return [job.job_id for job in any_store.jobs(*args, **kwargs)]

    assert ids(None) == [6, 5, 4, 3, 2, 1]
    assert ids(None, limit=2) == [6, 5]
    assert ids(1000) == [6, 4, 2]
    assert ids(1000, "bob") == [], "a user sees no jobs of others by asking for them"
    assert ids(None, "bob") == [5, 3, 1]
    assert ids(None, since=NOON + timedelta(hours=5)) == [6, 5]
    assert ids(None, since=(NOON + timedelta(hours=5)).astimezone()) == [6, 5]
    assert ids(None, script="_3") == [3]
    assert ids(None, script="train%3") == ids(None, script="' OR 1=1 --") == []


def test_signed_error():
    assert signed_error(12, 10) == pytest.approx(0.2)
    assert signed_error(9, 10) == pytest.approx(-0.1)
    assert signed_error(None, 10) is signed_error(10, None) is signed_error(10, 0) is None


def test_sqlite_file_is_private_and_in_wal(tmp_path, store):
    file = tmp_path / "history.db"
    store.add_decision(decision())
    for path in tmp_path.glob("history.db*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_sqlite_read_only_reads_beside_the_writer(tmp_path, store):
    store.add_decision(decision(id="d1"))
    with Store(f"sqlite:///{tmp_path}/history.db", read_only=True) as reader:
        assert len(reader.jobs(None)) == 1
        store.add_decision(decision(id="d2"))
        assert len(reader.jobs(None)) == 2
        with pytest.raises(StoreError, match="readonly"):
            reader.add_decision(decision(id="d3"))


def test_read_only_makes_no_file(tmp_path):
    with pytest.raises(StoreError, match="No such file"):
        Store(f"sqlite:///{tmp_path}/history.db", read_only=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("nonsense", "history.url"),
        ("sqlite://", "a file is needed"),
        (
            "sqlite:////no/such/folder/history.db",
            "/no/such/folder/history.db: cannot be opened: No such file",
        ),
        ("oracle+nodriver://host/x", "history.url"),
    ],
)
def test_bad_url_is_explained(url, problem):
    with pytest.raises(StoreError, match=problem):
        Store(url)


def test_unreachable_server_is_explained():
    pytest.importorskip("psycopg")
    with (
        Store("postgresql+psycopg://u@/x?host=/nowhere") as store,
        pytest.raises(StoreError, match="nowhere"),
    ):
        store.jobs(None)


def test_database_of_a_newer_version_is_refused(tmp_path, store):
    with sqlite3.connect(tmp_path / "history.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match="newer gpumem"):
        store.migrate()


def test_damaged_file_is_explained(tmp_path):
    (tmp_path / "history.db").write_bytes(b"not a database" * 100)
    with (
        Store(f"sqlite:///{tmp_path}/history.db") as store,
        pytest.raises(StoreError, match="not a database"),
    ):
        store.migrate()


def test_error_does_not_show_stored_values(store):
    store.add_decision(decision(id="d1"))
    with pytest.raises(StoreError) as caught:
        store.add_decision(decision(id="d1", reason="secret"))
    assert "secret" not in str(caught.value) + str(caught.value.__cause__)


def test_sqlite_file_of_url():
    assert sqlite_file("sqlite:////var/x.db") == Path("/var/x.db")
    assert sqlite_file("postgresql+psycopg:///x") is None
    with pytest.raises(StoreError):
        sqlite_file("nonsense")


def test_outcomes_are_of_measured_runs_with_an_estimate(any_store):
    made = any_store.add_estimate(estimate(status="bounded", peak_bytes=9 * GIB))
    for job_id in (7, 8, 9):
        estimate_id = None if job_id == 9 else made
        any_store.add_decision(
            decision(
                id=f"d{job_id}",
                job_id=job_id,
                fingerprint="f" * 64,
                estimate_id=estimate_id,
                needed_bytes=9 * GIB,
                promised_bytes=10 * GIB,
            )
        )
    two_gpus = measurement(7, minutes=9).gpus * 2
    runs = [
        measurement(8, 11 * GIB, minutes=3),
        measurement(7, 10 * GIB, minutes=2),
        measurement(7, minutes=9).model_copy(update={"gpus": two_gpus}),
        measurement(9, minutes=5),  # no estimate
        measurement(99, minutes=5),  # gpumem was not asked
        measurement(7, 1, minutes=-60),  # an earlier job of that id
    ]
    any_store.add_measurements(runs)
    found = any_store.outcomes(100)
    assert [one.peak_bytes for one in found] == [10 * GIB, 11 * GIB]  # as they ended
    first = found[0]
    assert (first.fingerprint, first.user_id, first.script_name) == ("f" * 64, 1000, "train.sh")
    assert (first.estimated_gpu, first.measured_gpu) == ("a100-80gb", "A100")
    assert (first.status, first.estimated_bytes, first.promised_bytes) == ("bounded", 9 * GIB, 10 * GIB)
    assert (first.source, first.exit_code, first.out_of_memory) == ("sampling", 0, None)
    assert any_store.outcomes(4) == [found[1]]  # of the last four that were measured


def test_outcomes_are_found_by_an_index(store):
    with store._engine.connect() as connection:
        statements = []
        event.listen(store._engine, "before_cursor_execute", lambda *args: statements.append(args[2:4]))
        store.outcomes(10)
        text, values = statements[-1]
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values).all()
    steps = [row[-1] for row in plan]
    assert any("ix_measurements_ended_at" in step for step in steps), steps
    assert not [
        step for step in steps if step.startswith("SCAN") and "INDEX" not in step and "anon" not in step
    ]
