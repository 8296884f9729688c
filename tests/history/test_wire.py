"""Measurements come from bytes that nobody vouches for."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from history.wire import MAX_BATCH, MAX_PROBLEM_LENGTH, MAX_PROBLEMS, JobsQuery, Measurement, Measurements

GOOD = {
    "id": "0f8fad5b-d9cb-469f-a165-70867728950e",
    "cluster": "anchors",
    "job_id": 17,
    "node": "n1",
    "user_id": 1000,
    "gpus": [
        {
            "uuid": "GPU-8f6a",
            "model": "NVIDIA A100 80GB PCIe",
            "memory_bytes": 85899345920,
            "peak_bytes": 0,
            "source": "accounting",
            "processes": 1,
            "shared": False,
        }
    ],
    "started_at": "2026-01-31T08:00:00+01:00",
    "ended_at": "2026-01-31T07:10:00Z",
    "exit_code": 0,
    "samples": 600,
    "problems": ["nvml: library not found"],
}


def changed(**changes):
    return json.dumps(GOOD | changes)


def test_times_become_utc_and_survive_the_wire():
    measurement = Measurement.model_validate_json(changed())
    assert measurement.started_at == datetime(2026, 1, 31, 7, tzinfo=UTC)
    assert measurement.started_at.tzinfo is UTC
    assert Measurement.model_validate_json(measurement.model_dump_json()) == measurement


def test_unknown_is_null_and_id_is_new():
    first, second = (
        Measurement(job_id=1, node="n1", gpus=[{"uuid": "GPU-1"}], ended_at=datetime.now(UTC))
        for _ in range(2)
    )
    assert first.id != second.id
    gpu = json.loads(first.model_dump_json())["gpus"][0]
    assert {key for key, value in gpu.items() if value is None} == set(gpu) - {"uuid"}


def test_newer_fields_are_ignored():
    assert not hasattr(Measurement.model_validate_json(changed(colour="red")), "colour")


def test_wordy_problems_are_cut_not_refused():
    problems = Measurement.model_validate_json(changed(problems=["x" * 9999] * 999)).problems
    assert problems == ["x" * MAX_PROBLEM_LENGTH] * MAX_PROBLEMS


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "../../etc/passwd"},
        {"id": "0F8FAD5B-D9CB-469F-A165-70867728950E"},
        {"job_id": 0},
        {"job_id": "17"},
        {"job_id": True},
        {"job_id": 2**32},
        {"node": "n1\u001b[2J"},
        {"node": ""},
        {"node": "n" * 256},
        {"user_id": -1},
        {"gpus": [{"uuid": "GPU-1"}] * 65},
        {"gpus": [{"uuid": "GPU-1", "peak_bytes": -1}]},
        {"gpus": [{"uuid": "GPU-1", "peak_bytes": 2**60}]},
        {"gpus": [{"uuid": "GPU-1", "peak_bytes": 1.5}]},
        {"gpus": [{"uuid": "GPU-1", "memory_bytes": 0}]},
        {"gpus": [{"uuid": "GPU-1", "source": "guess"}]},
        {"gpus": None},
        {"started_at": "2026-01-31T08:00:00"},
        {"ended_at": None},
        {"ended_at": "9999-12-31T23:59:59-12:00"},
        {"ended_at": "0001-01-01T00:00:00+12:00"},
        {"problems": ["a\u0000b"]},
        {"problems": "none"},
    ],
    ids=str,
)
def test_refused(changes):
    with pytest.raises(ValidationError):
        Measurement.model_validate_json(changed(**changes))


def test_batch_is_a_bounded_list():
    assert len(Measurements.model_validate_json(f"[{changed()}]").root) == 1
    with pytest.raises(ValidationError):
        Measurements.model_validate([GOOD] * (MAX_BATCH + 1))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(GOOD)), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.sampled_from(list(GOOD)), json_values)
def test_any_value_in_any_field_is_read_or_refused(field, value):
    try:
        measurement = Measurement.model_validate_json(json.dumps(GOOD | {field: value}))
    except ValidationError:
        return
    assert Measurement.model_validate_json(measurement.model_dump_json()) == measurement


def test_query_is_bounded():
    assert JobsQuery.model_validate({"limit": "7"}).limit == 7
    for bad in ({"limit": "0"}, {"limit": "99999"}, {"user": ""}, {"since": "yesterday"}):
        with pytest.raises(ValidationError):
            JobsQuery.model_validate(bad)
