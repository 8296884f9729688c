from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from slurm_plugin.known import FAILURE_LASTS_S, KnownResults, unchanged
from slurm_plugin.policy import Known
from slurm_plugin.wire import Estimated, Input
from testbed.users import User


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
    uid = os.getuid()
    assert unchanged([], uid)
    assert unchanged([same], uid)
    assert not unchanged([same, same.model_copy(update={"mtime_ns": status.st_mtime_ns + 1})], uid)
    assert not unchanged([same.model_copy(update={"size": 4})], uid)
    assert not unchanged([same.model_copy(update={"path": str(tmp_path / "gone")})], uid)
    assert not unchanged([same.model_copy(update={"path": "a\0b"})], uid)


def test_a_file_that_was_only_touched_is_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("layers = 4")
    known = Input(path=str(file), size=10, mtime_ns=0, sha256=hashlib.sha256(b"layers = 4").hexdigest())
    assert unchanged([known], os.getuid())
    file.write_text("layers = 5")
    assert not unchanged([known], os.getuid())
    file.unlink()
    os.mkfifo(file)
    assert not unchanged([known.model_copy(update={"size": 0})], os.getuid())


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_files_are_looked_at_as_the_user(alice: User, bob: User) -> None:
    file = alice.home / "private.py"
    file.write_text("secret")
    os.chown(file, alice.uid, alice.gid)
    file.chmod(0o600)
    status = file.stat()
    known = Input(path=str(file), size=6, mtime_ns=status.st_mtime_ns)
    touched = Input(path=str(file), size=6, mtime_ns=0, sha256=hashlib.sha256(b"secret").hexdigest())
    assert unchanged([known, touched], alice.uid)
    assert not unchanged([touched], bob.uid)
    assert not unchanged([known], 4_000_000)
    assert file.read_text() == "secret"  # this thread is root again
    assert (os.geteuid(), os.getegid()) == (0, 0)
