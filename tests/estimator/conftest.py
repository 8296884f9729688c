"""Fixtures of those who have scripts contained."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import estimator.starter
from testbed.cluster import make_folder
from testbed.users import User, existing
from tests.estimator.callers import REPOSITORY, Caller, running, settle


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
    if request.param == "user":
        _open_checkout()
    user = request.getfixturevalue("alice") if request.param == "user" else existing("root")
    return settle(user, open_folder)


def _open_checkout() -> None:
    """Ordinary users run what lies in the checkout; a clone made with umask 077 is closed to them."""
    files = (REPOSITORY / "estimator" / "cli.py", Path(estimator.starter.LIBRARY))
    open_files = all(file.stat().st_mode & 0o004 for file in files)
    if not (open_files and all(folder.stat().st_mode & 0o001 for folder in files[0].parents)):
        pytest.skip(f"other users cannot read {REPOSITORY}: chmod -R o+rX")


@pytest.fixture
def ordinary(alice: User, open_folder: Path) -> Caller:
    _open_checkout()
    return settle(alice, open_folder)


@pytest.fixture
def marker() -> Iterator[str]:
    """A word that finds processes by their command line; whatever still has it afterwards is killed."""
    word = f"gpumem-marker-{os.getpid()}-{time.monotonic_ns()}"
    yield word
    for pid in running(word):
        os.kill(pid, signal.SIGKILL)
