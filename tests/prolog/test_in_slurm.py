"""Prolog and epilog in a real Slurm: with every fault the job runs, and its node is not drained."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_plugin.slurm import ScontrolSlurm
from testbed.cluster import Cluster
from testbed.users import User, open_copy
from tests.prolog.pretend_node import (
    GPU_USER,
    GPUS,
    MIB,
    NVML_FOLDER,
    REPOSITORY,
    PretendNode,
    Service,
    hanging_nvml,
    new_place,
    wait_until,
)

COMMAND = """#!/bin/sh
. {folder}/fault.env
export GPUMEM_BIN="${{GPUMEM_BIN-{folder}/bin}}"
exec {guard}
"""
PROGRAM = """#!/bin/sh
export PYTHONPATH={repository} GPUMEM_CONFIG={config} GPUMEM_FAKE_NODE={gpus}
export LD_LIBRARY_PATH="${{NVML-{nvml}}}"
exec {python} -m prolog.{name}
"""


@dataclass(frozen=True)
class Site:
    """A cluster of one node whose prolog and epilog are gpumem's."""

    cluster: Cluster
    node: PretendNode
    service: Service

    def fault(self, **environment: str) -> None:
        """What prolog and epilog find in their environment from now on."""
        lines = [f"export {name}='{value}'\n" for name, value in environment.items()]
        (self.node.folder / "fault.env").write_text("".join(lines))

    def run(self, user: User, gres: str = "shard:4", used: int = 300 * MIB, gpu: str = GPUS[0]) -> int:
        """A job that holds GPU memory for a moment; returns its id once its node is free again."""
        holder = f"/usr/bin/python3 {self.node.folder}/gpu_user.py {self.node.gpu_dir}"
        script = f"#!/bin/sh\n(echo 'hold {gpu} {used}'; sleep 0.5; echo end) | {holder}\n"
        job_id = self.cluster.sbatch(script, user=user, args=[f"--gres={gres}"])
        self.cluster.wait_state(job_id, "COMPLETED")
        self.cluster.wait_for(self.cluster.idle, what="the epilog to end")
        assert self.cluster.drained() == {}
        return job_id


@pytest.fixture(scope="module")
def site(root: None) -> Iterator[Site]:
    folder = new_place()
    service = Service(folder)
    node = PretendNode(folder, service.url)
    open_copy(GPU_USER, folder)
    (folder / "bin").mkdir()
    hooks = {}
    for name in ("prolog", "epilog"):
        guard = REPOSITORY / "etc" / f"gpumem-{name}.sh"
        values = {
            "repository": REPOSITORY,
            "config": node.config,
            "gpus": node.gpu_dir,
            "nvml": NVML_FOLDER,
            "python": sys.executable,
        }
        hooks[name] = script(folder / f"{name}.sh", COMMAND.format(folder=folder, guard=guard))
        script(folder / "bin" / f"gpumem-{name}", PROGRAM.format(name=name, **values))
    (folder / "fault.env").write_text("")
    with Cluster(nodes=1, prolog=hooks["prolog"], epilog=hooks["epilog"]) as cluster:
        yield Site(cluster, node, service)
    node.close()
    service.stop()
    shutil.rmtree(folder, ignore_errors=True)


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def healthy(site: Site) -> Iterator[None]:
    """Ends every fault after the test."""
    site.service.start()
    yield
    site.fault()
    site.service.stop()


@pytest.mark.usefixtures("nvml")
def test_a_job_is_measured(site: Site, alice: User) -> None:
    job = site.run(alice)
    wait_until(lambda: site.service.peaks().get(job) == 300 * MIB, "the measurement")


@pytest.mark.usefixtures("nvml")
def test_the_measurement_of_a_task_leads_to_its_array(site: Site, alice: User) -> None:
    text = f"#!/bin/sh\necho end | /usr/bin/python3 {site.node.folder}/gpu_user.py {site.node.gpu_dir}\n"
    array = site.cluster.sbatch(text, user=alice, args=["--gres=shard:4", "--array=1-2"])
    before = set(site.service.jobs())
    wait_until(lambda: len(set(site.service.jobs()) - before) == 2, "the measurements")
    tasks = set(site.service.jobs()) - before
    found = ScontrolSlurm(site.cluster.conf).arrays(sorted(tasks))
    assert found == dict.fromkeys(tasks - {array}, array)
    assert len(found) >= 1


@pytest.mark.usefixtures("nvml")
def test_two_jobs_on_one_gpu_are_measured_apart(site: Site, alice: User, bob: User) -> None:
    def submit(user: User, used: int) -> int:
        holder = f"/usr/bin/python3 {site.node.folder}/gpu_user.py {site.node.gpu_dir}"
        text = f"#!/bin/sh\n(echo 'hold {GPUS[0]} {used}'; sleep 1.5; echo end) | {holder}\n"
        return site.cluster.sbatch(text, user=user, args=["--gres=shard:4"])

    jobs = {submit(alice, 100 * MIB): 100 * MIB, submit(bob, 200 * MIB): 200 * MIB}
    for job in jobs:
        site.cluster.wait_state(job, "COMPLETED")
    wait_until(lambda: jobs.items() <= site.service.peaks().items(), f"{jobs} in {site.service.peaks()}")


@pytest.mark.parametrize("fault", ["no NVML", "hanging NVML", "GPU lost", "no gpumem"])
def test_a_fault_costs_neither_job_nor_node(site: Site, alice: User, fault: str) -> None:
    if fault == "no NVML":
        site.fault(NVML="")
    elif fault == "hanging NVML":
        site.fault(NVML=str(hanging_nvml(site.node.folder / "hanging")))
    elif fault == "GPU lost":
        site.fault(GPUMEM_FAKE_NVML_FAULT="gpu_lost")
    elif fault == "no gpumem":
        site.fault(GPUMEM_BIN="/nowhere")
    job = site.run(alice)
    if fault in ("no NVML", "GPU lost"):
        wait_until(lambda: job in site.service.jobs(), "the measurement")
        assert site.service.peaks()[job] is None


@pytest.mark.usefixtures("nvml")
def test_without_room_and_without_service_the_job_runs_and_the_numbers_come_later(
    site: Site, alice: User
) -> None:
    site.service.stop()
    folder = site.node.folder / "tiny"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,ro", "tmpfs", str(folder)], check=True)
    site.node.configure(spool_dir=str(folder / "a"), fallback_dir=str(folder / "b"))
    try:
        job = site.run(alice)
        site.service.start()
        wait_until(lambda: site.service.peaks().get(job) == 300 * MIB, "the measurement")
        assert site.service.jobs().count(job) == 1
    finally:
        site.node.configure()
        subprocess.run(["umount", "-l", str(folder)], check=True)
