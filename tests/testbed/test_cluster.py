"""The one-machine Slurm itself: jobs run as their users, GPUs and shards are handed out, nothing is left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from testbed.cluster import Cluster, ClusterError, parse_job
from testbed.users import User


def test_a_job_runs_as_its_user(cluster: Cluster, alice: User) -> None:
    job_id = cluster.sbatch("id -un; pwd", user=alice)
    job = cluster.wait_state(job_id, "COMPLETED")
    assert cluster.output(job_id).split() == [alice.name, str(alice.home)]
    assert job["UserId"] == f"{alice.name}({alice.uid})"


def test_a_shard_job_gets_the_first_gpu(cluster: Cluster, alice: User) -> None:
    job_id = cluster.sbatch(
        "echo gpu=$CUDA_VISIBLE_DEVICES; sleep 60", user=alice, args=["--gres=shard:24", "-w", "n1"]
    )
    job = cluster.wait_state(job_id, "RUNNING")
    assert job["GRES"].startswith("shard:") and job["GRES"].endswith(":24(IDX:0)")
    cluster.wait_for(lambda: "gpu=0" in cluster.output(job_id), what="the job's output")
    cluster.scancel(job_id)
    cluster.wait_state(job_id, "CANCELLED")


def test_two_shard_jobs_share_a_gpu(cluster: Cluster, alice: User, bob: User) -> None:
    args = ["--gres=shard:24", "-w", "n2"]
    ids = [cluster.sbatch("sleep 60", user=user, args=args) for user in (alice, bob)]
    jobs = [cluster.wait_state(job_id, "RUNNING") for job_id in ids]
    assert {job["GRES"].partition("(")[2] for job in jobs} == {"IDX:0)"}
    assert {job["Nodes"] for job in jobs} == {"n2"}
    for job_id in ids:
        cluster.scancel(job_id)


def test_sbatch_says_what_slurm_refuses(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="Invalid generic resource"):
        cluster.sbatch("true", args=["--gres=nonsense:1"])


def test_a_failing_prolog_is_seen_as_a_drained_node(tmp_path: Path, root: None) -> None:
    prolog = tmp_path / "prolog"
    prolog.write_text("#!/bin/sh\nexit 1\n")
    prolog.chmod(0o755)
    with Cluster(nodes=1, prolog=prolog) as broken:
        broken.sbatch("true")
        assert broken.wait_for(broken.drained) == {"n1": "Prolog error"}


def test_nothing_is_left_and_two_clusters_run_at_once(cluster: Cluster, root: None) -> None:
    started = time.monotonic()
    with Cluster(nodes=1) as other:
        took_s = time.monotonic() - started
        job_id = other.sbatch("sleep 100")
        other.wait_state(job_id, "RUNNING")
        assert cluster.wait_for(cluster.idle, what="the first cluster to be idle")
    assert took_s < 30
    assert not other.folder.exists()
    assert processes_naming(str(other.folder)) == []


def test_parse_job_keeps_blanks_in_values() -> None:
    job = parse_job(
        "JobId=5 JobName=a b AdminComment=gpumem decision=1 asked=gres:gpu:1 TresPerNode=gres:shard:24"
    )
    assert job["JobName"] == "a b"
    assert job["AdminComment"] == "gpumem decision=1 asked=gres:gpu:1"
    assert job["TresPerNode"] == "gres:shard:24"


def processes_naming(text: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in words and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found
