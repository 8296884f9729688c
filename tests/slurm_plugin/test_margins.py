"""The margins of gpumemd: from the history on disk to memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from estimator import catalog
from history.calibration import Job
from history.models import Decision, Estimate
from history.store import Store
from history.wire import Measurement
from settings import GIB, Settings
from slurm_plugin.margins import Margins, observations
from tests.history.test_outcomes import RUN

CATALOG = catalog.load()
A100 = CATALOG.find("a100-80gb")
SETTINGS = Settings().estimate
NEXT = Job("a100-80gb", "exact", 10 * GIB, "g")


def fill(
    store: Store,
    peak: int,
    model: str = "NVIDIA A100-SXM4-80GB",
    exit_code: int = 0,
    out_of_memory: bool | None = None,
) -> None:
    made = store.add_estimate(Estimate(fingerprint="f", gpu=A100.name, status="exact", peak_bytes=10 * GIB))
    now = datetime.now(UTC)
    store.add_decision(
        Decision(
            user_id=1000,
            action="rewrite",
            state="rewritten",
            job_id=7,
            fingerprint="f",
            estimate_id=made,
            out_of_memory=out_of_memory,
        )
    )
    gpu = {"uuid": "GPU-1", "model": model, "peak_bytes": peak, "source": "both", "processes": 1}
    ended = now + timedelta(minutes=1)
    store.add_measurements(
        [Measurement(job_id=7, node="n1", gpus=[gpu], exit_code=exit_code, ended_at=ended)]
    )


@pytest.fixture
def store(tmp_path: Path):
    with Store(f"sqlite:///{tmp_path}/history.db") as store:
        store.migrate()
        yield store


def test_what_was_measured_moves_the_margin(store: Store) -> None:
    margins = Margins(store, {"gpu": A100, "other": A100}, SETTINGS)
    before = margins.current()
    assert before.bound(NEXT).bytes == int(10.3 * GIB)
    fill(store, 14 * GIB)
    margins.learn()
    assert margins.current().bound(NEXT).bytes >= 14 * GIB
    assert before.bound(NEXT).bytes == int(10.3 * GIB), "what is in use does not change under its user"


def test_the_settings_can_keep_their_own_margin(store: Store) -> None:
    fill(store, 14 * GIB)
    margins = Margins(store, {"gpu": A100}, SETTINGS.model_copy(update={"margin_from_history": False}))
    margins.learn()
    assert margins.current().bound(NEXT).bytes == int(10.3 * GIB)


@pytest.mark.parametrize("from_history", [True, False])
def test_work_that_ran_out_of_memory_is_remembered(store: Store, from_history: bool) -> None:
    fill(store, 9 * GIB, exit_code=256, out_of_memory=True)
    settings = SETTINGS.model_copy(update={"margin_from_history": from_history})
    margins = Margins(store, {"gpu": A100}, settings)
    margins.learn()
    assert margins.current().too_small == {"f"}


def test_a_run_on_another_model_says_nothing(store: Store) -> None:
    fill(store, 14 * GIB, "NVIDIA H100 80GB HBM3")
    margins = Margins(store, {"gpu": A100, "h": CATALOG.find("h100-80gb")}, SETTINGS)
    margins.learn()
    assert margins.current().summaries() == []


def test_models_are_known_by_all_their_names() -> None:
    runs = [
        RUN,
        replace(RUN, estimated_gpu="a100-80gb", measured_gpu="NVIDIA A100 80GB PCIe"),
        replace(RUN, measured_gpu="NVIDIA A100-SXM4-40GB"),
        replace(RUN, measured_gpu=None),
        replace(RUN, estimated_gpu="gone from the settings"),
    ]
    assert [one.job.gpu for one in observations(runs, [A100])] == ["a100-80gb"] * 2


def test_a_history_that_cannot_be_read_changes_nothing(store: Store, tmp_path: Path) -> None:
    fill(store, 14 * GIB)
    margins = Margins(store, {"gpu": A100}, SETTINGS)
    margins.learn()
    learned = margins.current()
    store.close()
    (tmp_path / "history.db").write_bytes(b"not a database" * 1000)
    margins.learn()
    assert margins.current() is learned
