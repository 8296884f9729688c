"""What a job finds in its environment: in a dry run, and in a real Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimator import dry_run
from estimator.dry_run import Launch
from testbed.cluster import Cluster
from testbed.users import User

OPTIONS = [
    "",
    "-n2",
    "-N2 --ntasks-per-node=2",
    "-n2 -c1",
    "--cpus-per-task=2 --gpus-per-node=1",
    "--gpus=1 --qos=normal --comment=x",
    "--export=NONE",
    "--export=MINE,ADDED=1",
    "--export=ALL,MINE=other",
]
OF_SLURM = (
    "NTASKS NPROCS NTASKS_PER_NODE CPUS_PER_TASK CPUS_ON_NODE JOB_CPUS_PER_NODE TASKS_PER_NODE JOB_USER "
    "JOB_NUM_NODES GPUS GPUS_PER_NODE SUBMIT_DIR PROCID LOCALID NODEID"
)
NAMES = ("MINE", "OTHER", "ADDED", "USER", *(f"SLURM_{name}" for name in OF_SLURM.split()))


@pytest.mark.parametrize("options", OPTIONS)
def test_as_in_slurm(cluster: Cluster, alice: User, tmp_path: Path, options: str) -> None:
    text = f"#!/bin/sh\n#SBATCH {options}\nenv -0 | tr '\\n\\0' ' \\n'\n"
    own = {"MINE": "1", "OTHER": "2", "HOME": str(alice.home), "USER": alice.name, "LOGNAME": alice.name}
    job = cluster.sbatch(text, user=alice, env=own)
    cluster.wait_state(job, "COMPLETED")
    found = dict(line.split("=", 1) for line in cluster.output(job).splitlines() if "=" in line)
    script = tmp_path / "job.sh"
    script.write_text(text)
    launch = Launch.of_script(script, (), Path(found["SLURM_SUBMIT_DIR"]))
    told = dry_run.job_environment(own, launch)
    assert {name: told.get(name) for name in NAMES} == {name: found.get(name) for name in NAMES}
