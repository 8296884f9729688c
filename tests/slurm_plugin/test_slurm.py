"""The back end against a real Slurm, without a service."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.slurm import (
    BatchRun,
    Partition,
    ScontrolSlurm,
    SlurmError,
    admin_comment,
    shards_of_partitions,
)
from testbed.cluster import Cluster
from testbed.users import User


@pytest.fixture
def slurm(cluster: Cluster) -> ScontrolSlurm:
    return ScontrolSlurm(cluster.conf)


def tagged_job(cluster: Cluster, user: User, decision: str, *args: str) -> int:
    job_id = cluster.sbatch("sleep 30", user=user, args=["--gres=shard:80", "--begin=now+1hour", *args])
    cluster.scontrol("update", f"JobId={job_id}", f"AdminComment={admin_comment(decision, 'gpu:1')}")
    return job_id


@pytest.mark.parametrize("others", [0, 12])
def test_jobs_are_found_by_their_decision(
    cluster: Cluster, slurm: ScontrolSlurm, alice: User, bob: User, others: int
) -> None:
    more = [cluster.sbatch("true", user=alice, args=["--hold"]) for _ in range(others)]
    hers, his = f"aa{others}", f"bb{others}"
    job_id = tagged_job(cluster, alice, hers)
    found = slurm.find({hers: alice.uid, his: bob.uid})
    assert {decision: job.id for decision, job in found.items()} == {hers: job_id}
    assert found[hers].pending
    later = tagged_job(cluster, bob, his)
    assert slurm.find({his: bob.uid})[his].id == later
    for left in (*more, job_id, later):
        cluster.scancel(left)


def test_a_job_that_could_not_be_looked_at_once_is_looked_at_again(
    cluster: Cluster, alice: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    slurm = ScontrolSlurm(cluster.conf)
    slurm.find({"ab12": alice.uid})  # takes note of earlier tests' jobs
    job_id = tagged_job(cluster, alice, "ab12")
    broken = tmp_path / "scontrol"
    broken.write_text("#!/bin/sh\necho 'Unable to contact slurm controller (connect failure)' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(SlurmError, match="connect failure"):
        slurm.find({"ab12": alice.uid})
    broken.unlink()
    assert slurm.find({"ab12": alice.uid})["ab12"].id == job_id
    cluster.scancel(job_id)


@pytest.mark.parametrize("others", [0, 12])
def test_nobody_takes_over_the_decision_about_anothers_job(
    cluster: Cluster, slurm: ScontrolSlurm, alice: User, bob: User, others: int
) -> None:
    more = [cluster.sbatch("true", user=alice, args=["--hold"]) for _ in range(others)]
    first, second = f"cc{others}", f"dd{others}"
    mine, other = tagged_job(cluster, alice, first), tagged_job(cluster, alice, second)
    forged = f"x\nJobId={other} UserId=gpumem-alice({alice.uid}) AdminComment=gpumem decision={first}"
    theirs = cluster.sbatch("true", user=bob, args=["--hold", f"--job-name={forged}"])
    found = slurm.find({first: alice.uid, second: alice.uid})
    assert {decision: job.id for decision, job in found.items()} == {first: mine, second: other}
    assert slurm.find({first: bob.uid}) in ({}, {first: slurm.job(theirs)})  # harms nobody but bob
    for left in (*more, mine, other, theirs):
        cluster.scancel(left)


def test_an_array_is_one_job(cluster: Cluster, slurm: ScontrolSlurm, alice: User) -> None:
    job_id = tagged_job(cluster, alice, "ff66", "--array=1-3%2")
    slurm.release(job_id, "shard:1", None, admin_comment("ff66", "gpu:1"))
    cluster.wait_for(lambda: "JobState=RUNNING" in cluster.scontrol("show", "job", str(job_id)))
    assert slurm.find({"ff66": alice.uid})["ff66"].id == job_id
    cluster.scancel(job_id)


def test_tasks_are_told_from_other_jobs(cluster: Cluster, slurm: ScontrolSlurm, alice: User) -> None:
    alone = cluster.sbatch("true", user=alice)
    array = cluster.sbatch("true", user=alice, args=["--array=0-2", "--output=/dev/null"])

    def split() -> list[int]:
        return [int(job["JobId"]) for job in cluster.jobs() if job.get("ArrayJobId") == str(array)]

    cluster.wait_for(lambda: len(split()) == 3)
    tasks = split()
    found = slurm.arrays([*tasks, alone, 99_999])
    assert found == dict.fromkeys(set(tasks) - {array}, array)
    assert slurm.arrays([99_999]) == {}


def test_release_changes_the_shards_and_the_start(
    cluster: Cluster, slurm: ScontrolSlurm, alice: User
) -> None:
    job_id = tagged_job(cluster, alice, "ee55")
    slurm.release(job_id, "shard:5", int(time.time()) + 600, "x")
    job = cluster.job(job_id)
    assert (job["JobState"], job["TresPerNode"], job["AdminComment"]) == ("PENDING", "gres:shard:5", "x")
    slurm.release(job_id, "shard:6", None, "y")
    assert "shard:6" in cluster.wait_state(job_id, "RUNNING")["GRES"]
    with pytest.raises(SlurmError, match="no longer pending"):
        slurm.release(job_id, "shard:7", None, "z")
    running = slurm.job(job_id)
    assert running is not None and (running.state, running.user_id) == ("RUNNING", alice.uid)
    cluster.scancel(job_id)


def test_what_slurm_does_not_know(cluster: Cluster, slurm: ScontrolSlurm) -> None:
    assert slurm.job(987654) is None
    with pytest.raises(SlurmError, match="Invalid job id"):
        slurm.release(987654, "shard:1", None, "x")


def test_slurm_says_who_it_is(slurm: ScontrolSlurm) -> None:
    assert slurm.user_name() == "root"
    assert slurm.partitions()["gpu"] == Partition(False, frozenset({80}))


def test_shards_are_read_as_slurm_prints_them() -> None:
    nodes = """\
NodeName=a Gres=gpu:a100:4(S:0-1),shard:a100:320(S:0-1) NodeAddr=a Partitions=gpu,all BootTime=x
NodeName=b Gres=gpu:8,shard:1K NodeAddr=b Partitions=big
NodeName=c Gres=gpu:h100:2,nvme:4 NodeAddr=c Partitions=gpu
NodeName=d Gres=gpu:a100:2,shard:80 NodeAddr=d Partitions=all
NodeName=e Gres=(null) NodeAddr=e Partitions=cpu
NodeName=f Gres=gpu:2,shard:160 NodeAddr=f BootTime=x"""
    assert shards_of_partitions(nodes) == {"gpu": {80}, "all": {80, 40}, "big": {128}}


def test_a_slurm_that_is_away_is_an_error(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(SlurmError):
        ScontrolSlurm(tmp_path_factory.mktemp("none") / "slurm.conf", timeout_s=0.5).find({"aa": 1})


def test_the_error_file_of_a_job(cluster: Cluster, slurm: ScontrolSlurm, alice: User) -> None:
    job_id = cluster.sbatch("true", user=alice, args=["--hold", "--error=err-%j.txt"])
    path = slurm.error_file(job_id)
    assert path is not None and path.name == f"err-{job_id}.txt" and path.is_absolute()
    cluster.scancel(job_id)
    with pytest.raises(SlurmError):
        slurm.error_file(2**31 - 5)


def test_how_the_run_of_a_job_stands(cluster: Cluster, slurm: ScontrolSlurm, alice: User) -> None:
    forged = "x|COMPLETING|Requeue=1"
    failed = cluster.sbatch("exit 1", user=alice, args=[f"--job-name={forged}", f"--comment={forged}"])
    others = {
        "requeue": cluster.sbatch("true", user=alice, args=["--hold", "--no-requeue"]),
        "is_task": cluster.sbatch("true", user=alice, args=["--hold", "--array=1-2"]),
        "is_bound": cluster.sbatch("true", user=alice, args=["--hold", "--deadline=now+1hour", "--time=1"]),
    }
    cluster.wait_state(failed, "FAILED")
    run = BatchRun("FAILED", "NonZeroExitCode", alice.uid, "gpu", True, 0, False, False)
    assert slurm.batch_run(failed) == run
    held = replace(run, state="PENDING", reason="JobHeldUser")
    for field, job_id in others.items():
        assert slurm.batch_run(job_id) == replace(held, **{field: not getattr(held, field)})
        cluster.scancel(job_id)
    assert slurm.batch_run(987654) is None


def test_a_job_that_has_run_waits_again_and_is_resized(
    cluster: Cluster, slurm: ScontrolSlurm, alice: User
) -> None:
    job_id = cluster.sbatch("exit 1", user=alice, args=["--gres=shard:3", "--output=/dev/null"])
    cluster.wait_state(job_id, "FAILED")
    slurm.requeue(job_id)
    slurm.resize(job_id, "shard:80", "x")
    job = cluster.job(job_id)
    assert (job["JobState"], job["TresPerNode"], job["AdminComment"]) == ("PENDING", "gres:shard:80", "x")
    run = slurm.batch_run(job_id)
    assert run is not None and (run.state, run.restarts) == ("PENDING", 1)
    start = time.mktime(time.strptime(job["EligibleTime"], "%Y-%m-%dT%H:%M:%S"))
    assert 100 < start - time.time() < 130, "time to resize it"
    cluster.scancel(job_id)

    never = cluster.sbatch("exit 1", user=alice, args=["--no-requeue", "--output=/dev/null"])
    cluster.wait_state(never, "FAILED")
    with pytest.raises(SlurmError, match="disabled"):
        slurm.requeue(never)
