"""Fixtures that start real Slurm clusters; skipped where the tests do not run as root."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import users
from testbed.cluster import Cluster, make_folder
from testbed.site import Site
from testbed.users import User

os.umask(0o022)  # what tests make, other users read

# The benchmarks are not installed: they are taken from the checkout, and what they measure is not.
sys.path.append(str(Path(__file__).parents[1]))


@pytest.fixture(scope="session")
def root() -> None:
    """Skips the test where the testbed cannot run."""
    if os.geteuid() != 0:
        pytest.skip("the testbed needs root")


@pytest.fixture(scope="session")
def homes(root: None) -> Iterator[Path]:
    """The folder that holds the home folders of the test users."""
    folder = make_folder("gpumem-home-")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def alice(homes: Path) -> User:
    """An ordinary user."""
    return users.ensure("gpumem-alice", homes)


@pytest.fixture(scope="session")
def bob(homes: Path) -> User:
    """Another ordinary user."""
    return users.ensure("gpumem-bob", homes)


@pytest.fixture(scope="session")
def cluster(root: None) -> Iterator[Cluster]:
    """A plain Slurm: two nodes with two GPUs of 80 shards each; no submit plug-in, no prolog."""
    with Cluster() as running:
        yield running


@pytest.fixture(scope="module")
def site(root: None) -> Iterator[Site]:
    """Slurm with gpumem on two pretend nodes with two A100 80 GB each; a fresh one for each test module."""
    with Site() as running:
        yield running
