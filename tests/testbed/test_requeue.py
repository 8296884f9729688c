"""A job that runs out of GPU memory in a part of a GPU runs again on a whole one: every real part but the estimator.

The job only says that memory ran out, as PyTorch does: that is what gpumem goes by.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from history.wire import JobRecord
from testbed.cluster import make_folder
from testbed.site import Site, commands
from testbed.users import User
from tests.slurm_plugin.running import ESTIMATE

ENDED = Path(__file__).parents[2] / "etc" / "gpumem-ended.sh"
GPU = ["--gres=gpu:1"]
NEIGHBOUR = "#!/bin/bash\n: fake shards=3\n: python\nsleep 600\n"
SCRIPT = """#!/bin/bash
: {name}
: fake shards=3
: python
echo "run ${{SLURM_RESTART_COUNT:-0}}: $SLURM_SHARDS_ON_NODE shards" >> {name}.runs
[ {works} ] && exit 0
sleep 1
echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB" >&2
exit 1
"""
WORKS_AGAIN = '-n "$SLURM_RESTART_COUNT"'
WORKS_NEVER = "-z x"


@pytest.fixture(scope="module")
def site(root: None) -> Iterator[Site]:
    folder = make_folder()
    shutil.copy(ESTIMATE, folder / "estimate.py")  # where ordinary users can read it
    command = f"/usr/bin/python3 -I {folder}/estimate.py"
    ended = folder / "ended.sh"
    ended.write_text(
        f"#!/bin/sh\nexport GPUMEM_BIN={commands()} GPUMEM_CONFIG={folder}/gpumem.toml\n. {ENDED}\n"
    )
    ended.chmod(0o755)
    extra = [f"EpilogSlurmctld={ended}"]
    try:
        with Site(folder, gpus_per_node=1, estimate_command=command, extra_conf=extra) as running:
            user = running.user("gpumem-alice")
            neighbour = running.cluster.sbatch(NEIGHBOUR, user=user, args=GPU)
            assert running.cluster.wait_state(neighbour, "RUNNING")["NodeList"] == "n1"
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def user(site: Site) -> User:
    return site.user("gpumem-alice")


def submit(site: Site, user: User, name: str, *args: str, works: str = WORKS_AGAIN) -> int:
    """As `sbatch`; again where a loaded machine cost gpumemd's answer, which has 50 ms."""

    def answered() -> int:
        text = SCRIPT.format(name=name, works=works)
        job = site.cluster.sbatch(text, user=user, args=[*GPU, *args], cwd=user.home)
        if "gpumem decision=" in site.cluster.job(job).get("AdminComment", ""):
            return job
        site.cluster.scancel(job)
        return 0

    return site.cluster.wait_for(answered, 30, "an answer of gpumemd")


def record(site: Site, job_id: int, *states: str) -> JobRecord:
    """The history's row of a job that ran out of memory, once its state is one of these."""

    def looked_at() -> JobRecord | None:
        row = site.record(job_id)
        return row if row and row.out_of_memory and row.state not in before else None

    before = () if states == ("requeueing",) else ("requeueing",)
    row = site.cluster.wait_for(looked_at, 20, f"the end of job {job_id} in the history")
    assert row is not None
    assert row.state in states, row
    return row


def start_now(site: Site, job_id: int) -> None:
    """Does not wait until Slurm starts a requeued job, in two minutes."""
    waits = site.cluster.job(job_id)
    assert (waits["JobState"], waits["Restarts"]) == ("PENDING", "1")
    assert waits["Reason"] in ("None", "NonZeroExitCode", "BeginTime")
    assert waits["Priority"] != "0", "held"
    site.cluster.scontrol("update", f"JobId={job_id}", "StartTime=now")


def runs(user: User, name: str) -> list[str]:
    return (user.home / f"{name}.runs").read_text().splitlines()


def test_it_runs_again_on_a_whole_gpu_and_nobody_has_seen_it_fail(site: Site, user: User) -> None:
    job = submit(site, user, "again")
    kinds = ("afterok", "afternotok", "afterany")
    after = {
        kind: site.cluster.sbatch("true", user=user, args=[f"--dependency={kind}:{job}"]) for kind in kinds
    }
    row = record(site, job, "requeued")
    assert (row.asked, row.got, row.shared) == ("gpu:1", "shard:80", True)
    assert row.reason == "ran out of GPU memory in shard:3; runs again on a whole GPU"
    assert "got=gres:shard:80 after=out-of-memory" in site.cluster.job(job)["AdminComment"]
    assert {site.cluster.job(other)["JobState"] for other in after.values()} == {"PENDING"}

    start_now(site, job)
    site.cluster.wait_state(job, "COMPLETED")
    assert runs(user, "again") == ["run 0: 3 shards", "run 1: 80 shards"]
    site.cluster.wait_state(after["afterok"], "COMPLETED")
    site.cluster.wait_state(after["afterany"], "COMPLETED")
    assert site.cluster.job(after["afternotok"])["Reason"] == "DependencyNeverSatisfied"


def test_the_next_job_of_its_kind_keeps_a_whole_gpu(site: Site, user: User) -> None:
    record(site, submit(site, user, "next"), "requeued")

    def passes() -> JobRecord | None:
        job = submit(site, user, "next", "--hold")
        row = site.cluster.wait_for(lambda: site.record(job), 10, "its decision")
        site.cluster.scancel(job)
        return row if row and row.action == "pass" else None

    row = site.cluster.wait_for(passes, 30, "what was learned")
    assert row is not None
    assert row.reason == "ran out of GPU memory in a part of one"


def test_no_requeue_is_kept(site: Site, user: User) -> None:
    job = submit(site, user, "never", "--no-requeue")
    row = record(site, job, "applied")
    assert row.reason == "ran out of GPU memory in shard:3; it does not run again: --no-requeue"
    assert site.cluster.wait_state(job, "FAILED")["Restarts"] == "0"
    assert runs(user, "never") == ["run 0: 3 shards"]


def test_a_job_that_had_its_gpu_for_itself_fails_as_it_would_have(site: Site, user: User) -> None:
    job = submit(site, user, "alone", "--nodelist=n2")
    assert "not known that others were on its GPU" in str(record(site, job, "applied").reason)
    assert site.cluster.wait_state(job, "FAILED")["Restarts"] == "0"


def test_it_runs_again_once_only(site: Site, user: User) -> None:
    job = submit(site, user, "twice", works=WORKS_NEVER)
    record(site, job, "requeued")
    start_now(site, job)
    site.cluster.wait_state(job, "FAILED")
    time.sleep(1)
    assert (site.cluster.job(job)["JobState"], site.cluster.job(job)["Restarts"]) == ("FAILED", "1")
    assert runs(user, "twice") == ["run 0: 3 shards", "run 1: 80 shards"]


def test_a_service_that_dies_between_the_steps_leaves_no_job_held(site: Site, user: User) -> None:
    job = submit(site, user, "orphan")
    site.cluster.wait_for(lambda: site.cluster.job(job)["Restarts"] == "1", 20, "the requeue")
    site.kill_service()
    try:
        site.cluster.wait_state(job, "PENDING")
        start_now(site, job)
        site.cluster.wait_state(job, "COMPLETED")
        assert runs(user, "orphan") == ["run 0: 3 shards", "run 1: 3 shards"]
    finally:
        site.start_service()


def test_a_service_that_comes_back_gives_the_job_its_gpu(site: Site, user: User) -> None:
    job = submit(site, user, "resumed")
    record(site, job, "requeueing")
    site.kill_service()
    site.start_service()
    assert record(site, job, "requeued").got == "shard:80"
    start_now(site, job)
    site.cluster.wait_state(job, "COMPLETED")
    assert runs(user, "resumed") == ["run 0: 3 shards", "run 1: 80 shards"]


@pytest.mark.parametrize(
    ("changes", "asks"),
    [
        ({}, True),
        ({"SLURM_JOB_EXIT_CODE": "0"}, False),
        ({"SLURM_JOB_RESTART_COUNT": "1"}, False),
        ({"SLURM_ARRAY_JOB_ID": "7"}, False),
        ({"SLURM_JOB_PARTITION": "cpu"}, False),
        ({"GPUMEM_CONFIG": "/nowhere"}, False),
        ({"GPUMEM_BIN": "/nowhere"}, False),
    ],
)
def test_slurmctld_starts_python_only_where_it_can_matter(
    tmp_path: Path, changes: dict[str, str], asks: bool
) -> None:
    (tmp_path / "gpumem.toml").write_text('[partitions."gpu"]\ngpu = "a100-80gb"\nshards_per_gpu = 80\n')
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nexit 1\n')
    (tmp_path / "python").chmod(0o755)
    given = {"SLURM_JOB_EXIT_CODE": "256", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_ID": "7"}
    paths = {"GPUMEM_BIN": str(tmp_path), "GPUMEM_CONFIG": str(tmp_path / "gpumem.toml")}
    assert subprocess.run([ENDED], env=given | paths | changes, check=False).returncode == 0
    assert (tmp_path / "asked").exists() == asks
