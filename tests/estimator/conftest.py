"""Fixtures of those who have scripts contained."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.cluster import make_folder
from testbed.users import User, existing
from tests.estimator.callers import Caller, running, settle


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter; pytest closes its own to others."""
    folder = make_folder("gpumem-test-")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=["user", "root"])
def caller(request: pytest.FixtureRequest, open_folder: Path) -> Caller:
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("only root can be root")
    user = request.getfixturevalue("alice") if request.param == "user" else existing("root")
    return settle(user, open_folder)


@pytest.fixture
def ordinary(alice: User, open_folder: Path) -> Caller:
    return settle(alice, open_folder)


@pytest.fixture
def marker() -> Iterator[str]:
    """A word that finds processes by their command line; whatever still has it afterwards is killed."""
    word = f"gpumem-marker-{os.getpid()}-{time.monotonic_ns()}"
    yield word
    for pid in running(word):
        os.kill(pid, signal.SIGKILL)
