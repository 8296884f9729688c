from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from history.models import Decision
from history.store import Store, StoreError
from slurm_plugin.writer import Writer


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(f"sqlite:///{tmp_path}/history.db")
    store.migrate()
    return store


def decision(number: int) -> Decision:
    return Decision(id=f"d{number}", user_id=1, action="pass", state="passed")


def test_writes_keep_their_order_and_stop_waits_for_them(store: Store) -> None:
    writer = Writer(store)
    for number in range(50):
        writer.put_decision(lambda number=number: decision(number))
        writer.put(lambda store, number=number: store.update_decision(f"d{number}", job_id=number + 1))
    last = writer.put(lambda store: len(store.decisions_in_state(["passed"])))
    writer.start()
    writer.stop(10)
    assert last.result(0) == 50
    assert {row.job_id for row in store.decisions_in_state(["passed"])} == set(range(1, 51))


def test_one_bad_record_costs_no_other(store: Store) -> None:
    writer = Writer(store)
    futures = [writer.put_decision(lambda number=number: decision(number)) for number in (1, 2, 2, 3)]
    broken = writer.put(lambda store: store.update_decision("nobody", job_id=1))
    writer.start()
    with pytest.raises(LookupError):
        broken.result(5)
    writer.stop(5)
    assert sum(future.exception(0) is None for future in futures) == 3
    assert {row.id for row in store.decisions_in_state(["passed"])} == {"d1", "d2", "d3"}


def test_while_the_database_is_away_writes_wait(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.writer._RETRY_S", 0.02)
    tries = 0

    def flaky(_: Store) -> str:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise StoreError("no connection") from OperationalError("insert", {}, Exception("gone"))
        return "written"

    writer = Writer(store)
    writer.start()
    assert writer.put(flaky).result(5) == "written"
    writer.stop(5)
