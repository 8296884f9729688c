"""Fixtures of those who have scripts contained."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.users import User, existing
from tests.estimator.callers import Caller, running, settle


@pytest.fixture(params=["user", "root"])
def caller(request: pytest.FixtureRequest, tmp_path: Path) -> Caller:
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("only root can be root")
    return settle(request.getfixturevalue("alice") if request.param == "user" else existing("root"), tmp_path)


@pytest.fixture
def ordinary(alice: User, tmp_path: Path) -> Caller:
    return settle(alice, tmp_path)


@pytest.fixture
def marker() -> Iterator[str]:
    """A word that finds processes by their command line; whatever still has it afterwards is killed."""
    word = f"gpumem-marker-{os.getpid()}-{time.monotonic_ns()}"
    yield word
    for pid in running(word):
        os.kill(pid, signal.SIGKILL)
