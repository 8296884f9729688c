"""A real Slurm with the submit plug-in, and a real gpumemd that it asks."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator

import pytest

from testbed.cluster import Cluster, make_folder
from tests.slurm_plugin.running import PLUGIN, Gpumemd


@pytest.fixture(scope="session")
def plugin_cluster(root: None) -> Iterator[Cluster]:
    """Two nodes with two GPUs each; slurmctld asks at the cluster's submit.sock."""
    folder = make_folder()
    try:
        environment = {"GPUMEM_SUBMIT_SOCKET": str(folder / "submit.sock")}
        with Cluster(folder, lua=PLUGIN, controller_env=environment, partitions=("gpu", "off")) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _gpumemd(plugin_cluster: Cluster) -> Iterator[Gpumemd]:
    service = Gpumemd(plugin_cluster.folder, plugin_cluster.conf, plugin_cluster.munge_socket)
    yield service
    service.kill(signal.SIGTERM)


@pytest.fixture
def gpumemd(plugin_cluster: Cluster, _gpumemd: Gpumemd) -> Gpumemd:
    """A running service of that cluster, which has no jobs; scripts of earlier tests are known."""
    unended = [job for job in plugin_cluster.jobs() if job["JobState"] in ("PENDING", "RUNNING")]
    for job in unended:
        plugin_cluster.scancel(int(job["JobId"]))
    if not _gpumemd.plain:
        _gpumemd.kill(signal.SIGTERM)
        (_gpumemd.folder / "gpumemd.log").write_text("")
        _gpumemd.start()
    plugin_cluster.wait_for(plugin_cluster.idle, what="idle nodes")
    return _gpumemd
