from __future__ import annotations

from pathlib import Path

from slurm_plugin.known import FAILURE_LASTS_S, KnownResults, unchanged
from slurm_plugin.policy import Known
from slurm_plugin.wire import Estimated, Input


def an_estimate() -> Known:
    fields = {"status": "exact", "peak_bytes": 1, "reserved_peak_bytes": 1, "gpu": "x", "fits": True}
    return Known(Estimated.model_validate(fields))


def test_failures_are_forgotten_after_an_hour_and_estimates_are_not() -> None:
    now = 0.0
    known = KnownResults(clock=lambda: now)
    known.put("failed", Known(None, "no such file"))
    known.put("done", an_estimate())
    now = FAILURE_LASTS_S - 1
    assert known.get("failed") is not None
    now = FAILURE_LASTS_S
    assert known.get("failed") is None
    assert known.get("done") is not None


def test_inputs_must_be_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("one")
    status = file.stat()
    same = Input(path=str(file), size=3, mtime_ns=status.st_mtime_ns)
    assert unchanged([])
    assert unchanged([same])
    assert not unchanged([same, same.model_copy(update={"mtime_ns": status.st_mtime_ns + 1})])
    assert not unchanged([same.model_copy(update={"size": 4})])
    assert not unchanged([same.model_copy(update={"path": str(tmp_path / "gone")})])
    assert not unchanged([same.model_copy(update={"path": "a\0b"})])
