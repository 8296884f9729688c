"""Which jobs that ran out of GPU memory may run again; tests/testbed/test_requeue.py has them run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from history.models import Decision
from history.wire import GpuMeasurement, Measurement
from settings import Partition, Requeue, Settings
from slurm_plugin.requeue import refused, unsuited
from slurm_plugin.slurm import BatchRun

ENDED = datetime(2026, 1, 2, tzinfo=UTC)
GPU = Partition(gpu="a100-80gb", shards_per_gpu=80)
SETTINGS = Settings(partitions={"gpu": GPU}, requeue=Requeue(within_s=600))
RUN = BatchRun("COMPLETING", "NonZeroExitCode", 1000, "gpu", True, 0, False, False)


def decision(**changes: Any) -> Decision:
    return Decision(
        **{"user_id": 1000, "action": "rewrite", "state": "rewritten", "job_id": 7, "partition": "gpu"}
        | changes
    )


def measured(*shared: bool | None, ran_s: float | None = 600) -> Measurement:
    return Measurement(
        job_id=7,
        node="n1",
        gpus=[GpuMeasurement(uuid="GPU-1", shared=one) for one in shared],
        started_at=None if ran_s is None else ENDED - timedelta(seconds=ran_s),
        ended_at=ENDED,
        exit_code=256,
    )


def test_a_job_that_shared_its_gpu_and_did_not_run_long_is_worth_another_run() -> None:
    assert unsuited(decision(), measured(True), SETTINGS) is None
    assert refused(RUN, decision()) is None


@pytest.mark.parametrize(
    ("measurement", "reason"),
    [
        (measured(False), "others were on its GPU"),
        (measured(None), "others were on its GPU"),
        (measured(), "others were on its GPU"),
        (measured(True, True), "others were on its GPU"),
        (measured(True, ran_s=601), "more than 600 s"),
        (measured(True, ran_s=None), "how long it ran"),
    ],
)
def test_what_was_measured_can_speak_against_it(measurement: Measurement, reason: str) -> None:
    assert reason in str(unsuited(decision(), measurement, SETTINGS))


def test_a_limit_in_its_environment_would_stay() -> None:
    assert "guard" in str(unsuited(decision(limit_bytes=1), measured(True), SETTINGS))


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS.model_copy(update={"requeue": Requeue(enabled=False)}),
        SETTINGS.model_copy(update={"partitions": {}}),
        SETTINGS.model_copy(update={"partitions": {"gpu": GPU.model_copy(update={"enabled": False})}}),
    ],
)
def test_the_settings_can_switch_it_off(settings: Settings) -> None:
    assert "switched off" in str(unsuited(decision(), measured(True), settings))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"requeue": False}, "--no-requeue"),
        ({"restarts": 1}, "before"),
        ({"is_task": True}, "array"),
        ({"is_bound": True}, "reservation"),
        ({"partition": "other"}, "partition"),
        ({"user_id": 1001}, "does not know"),
        ({"state": "FAILED"}, "FAILED already"),
        ({"state": "PENDING"}, "PENDING already"),
        ({"reason": "None"}, "from outside"),  # cancelled
        ({"reason": "TimeLimit"}, "from outside"),
    ],
)
def test_slurm_can_speak_against_it(changes: dict[str, Any], reason: str) -> None:
    assert reason in str(refused(replace(RUN, **changes), decision()))
    assert "does not know" in str(refused(None, decision()))
