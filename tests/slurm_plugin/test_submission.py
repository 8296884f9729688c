"""A batch job from sbatch to its start, in a real Slurm with a real gpumemd."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed.cluster import Cluster
from testbed.site import commands
from testbed.users import User
from tests.slurm_plugin.running import SHARDS, Gpumemd

GPU = ["--gres=gpu:1"]
LONG = "sleep 100"  # the next test cancels what still runs


def script(name: str, fake: str = "", command: str = "sleep 0.1") -> str:
    """A job that looks like one of Python; `fake` tells the stand-in estimator what to find."""
    return f"#!/bin/bash\n: {name}\n: fake {fake}\n: python\n{command}\n"


def submit(cluster: Cluster, user: User, text: str, args: list[str] = GPU, **more: object) -> int:
    return cluster.sbatch(text, user=user, args=args, **more)  # type: ignore[arg-type]


@pytest.fixture
def go(alice: User) -> Iterator[Path]:
    """A file that jobs and traces of `until={go}` wait for."""
    path = alice.home / "go"
    yield path
    path.unlink(missing_ok=True)


def gpu_of(job: dict[str, str]) -> tuple[str, str]:
    """Node and GRES with the index of the GPU, as Slurm gave them out."""
    return job["NodeList"], job["GRES"]


def test_a_new_script_is_held_traced_and_gets_its_shards(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User, go: Path
) -> None:
    text = script("new", f"shards=24 until={go}", LONG)
    done = plugin_cluster.try_sbatch(text, user=alice, args=GPU)
    job_id = int(done.stdout)
    assert "gpumem: finding out how much GPU memory" in done.stderr
    held = plugin_cluster.job(job_id)
    assert (held["JobState"], held["Reason"]) == ("PENDING", "BeginTime")
    assert held["TresPerNode"] == f"gres:shard:{SHARDS}"
    assert "asked=gres:gpu:1" in held["AdminComment"]
    go.touch()

    running = plugin_cluster.wait_state(job_id, "RUNNING")
    assert "shard:24(IDX:0)" in running["GRES"]
    row = gpumemd.wait_state(job_id, "applied")
    assert (row["asked"], row["got"], row["action"]) == ("gpu:1", "shard:24", "defer")
    assert row["estimated_peak_bytes"] == int((24 * 1024**3 - 1000) / 1.03)
    assert 0 < row["held_s"] < 60
    assert "got=gres:shard:24" in plugin_cluster.job(job_id)["AdminComment"]


def test_a_script_without_python_passes_unchanged_and_at_once(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User
) -> None:
    done = plugin_cluster.try_sbatch("#!/bin/bash\nhostname\n", user=alice, args=GPU)
    job_id = int(done.stdout)
    assert done.stderr == ""
    assert plugin_cluster.job(job_id)["TresPerNode"] == "gres:gpu:1"
    row = gpumemd.wait_state(job_id, "passed")
    assert (row["asked"], row.get("got")) == ("gpu:1", None)


def test_a_known_script_is_rewritten_at_submission(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User
) -> None:
    text = script("known", "shards=7")
    gpumemd.wait_state(submit(plugin_cluster, alice, text), "applied")
    done = plugin_cluster.try_sbatch(text, user=alice, args=["--gpus=1"])
    assert "gpumem: this job gets 7 GiB of a shared GPU (shard:7)" in done.stderr
    job_id = int(done.stdout)
    assert plugin_cluster.job(job_id)["TresPerNode"] == "gres:shard:7"
    assert plugin_cluster.wait_state(job_id, "COMPLETED")["ExitCode"] == "0:0"
    row = gpumemd.wait_state(job_id, "rewritten")
    assert (row["got"], row["held_s"]) == ("shard:7", 0)
    assert row["estimated_peak_bytes"] == 7 * 1024**3 - 1000 - 256 * 1024**2


def test_two_jobs_share_one_gpu_at_the_same_time(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User, bob: User
) -> None:
    text = script("share", "shards=30", LONG)
    jobs = [submit(plugin_cluster, user, text) for user in (alice, bob)]
    running = [plugin_cluster.wait_state(job, "RUNNING") for job in jobs]
    assert {job["JobState"] for job in map(plugin_cluster.job, jobs)} == {"RUNNING"}
    assert gpu_of(running[0]) == gpu_of(running[1])
    assert "shard:30(IDX:0)" in running[0]["GRES"]


@pytest.mark.parametrize("option", ["--gpus=1", "--gpus-per-node=1", "--gpus-per-task=1 --ntasks=1"])
def test_a_step_inside_a_rewritten_job_runs(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User, option: str
) -> None:
    text = script(f"step {option}", "shards=3", "srun echo step of $SLURM_JOB_ID")
    for _ in range(2):  # deferred, then rewritten
        job_id = submit(plugin_cluster, alice, text, option.split())
        ended = plugin_cluster.wait_state(job_id, "COMPLETED", "FAILED")
        assert f"step of {job_id}" in plugin_cluster.output(job_id)
        assert ended["JobState"] == "COMPLETED"
    assert gpumemd.wait_state(job_id, "rewritten")["got"] == "shard:3"


def test_a_job_without_gpu_is_not_even_asked_about(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User
) -> None:
    job = plugin_cluster.job(submit(plugin_cluster, alice, script("cpu"), []))
    assert "TresPerNode" not in job and "AdminComment" not in job


def test_the_tasks_of_an_array_share_one_trace_and_run_in_shards(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User, go: Path
) -> None:
    report = alice.home / "array.json"
    command = f'echo "task $SLURM_ARRAY_TASK_ID"; srun hostname; until [ -e {go} ]; do sleep 0.1; done'
    text = script("array", f"shards=30 until={report}.go report={report}", command)
    job_id = submit(plugin_cluster, alice, text, [*GPU, "--array=3-6"])
    held = plugin_cluster.job(job_id)
    assert (held["JobState"], held["TresPerNode"]) == ("PENDING", f"gres:shard:{SHARDS}")
    Path(f"{report}.go").touch()
    assert gpumemd.wait_state(job_id, "applied")["got"] == "shard:30"

    def tasks() -> list[dict[str, str]]:
        return [job for job in plugin_cluster.jobs() if job.get("ArrayJobId") == str(job_id)]

    def all_run() -> bool:
        return [job["JobState"] for job in tasks()] == ["RUNNING"] * 4

    plugin_cluster.wait_for(all_run, what="all tasks to run")
    assert {job["TresPerNode"] for job in tasks()} == {"gres:shard:30"}
    places = [gpu_of(job) for job in tasks()]
    assert len(set(places)) < 4  # some share a GPU
    (facts,) = [json.loads(line) for line in report.read_text().splitlines()]
    assert facts["options"]["--array"] == "3-6"
    go.touch()
    plugin_cluster.wait_for(plugin_cluster.idle, what="the tasks' end")
    assert {job["ExitCode"] for job in tasks()} == {"0:0"}

    again = submit(plugin_cluster, alice, text, [*GPU, "--array=3-6%1"])
    assert gpumemd.wait_state(again, "rewritten")["got"] == "shard:30"
    plugin_cluster.scancel(again)


def test_opting_out_leaves_the_job_alone(plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User) -> None:
    done = plugin_cluster.try_sbatch(script("out"), user=alice, args=[*GPU, "--comment=gpumem=off"])
    job = plugin_cluster.job(int(done.stdout))
    assert job["TresPerNode"] == "gres:gpu:1" and "AdminComment" not in job
    assert "gpumem" not in done.stderr


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--gres=gpu:2"], "not exactly one GPU"),
        (["--gres=gpu:a100:1", "-N2"], "more than one node"),
        ([*GPU, "--exclusive"], "--exclusive"),
        ([*GPU, "-n2"], "more than one task"),
        (["--gpus=1", "--cpus-per-gpu=2"], "--cpus-per-gpu"),
        ([*GPU, "--partition=off"], "partition off is not switched on"),
    ],
)
def test_what_cannot_share_passes_unchanged_with_a_reason(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User, args: list[str], reason: str
) -> None:
    done = plugin_cluster.try_sbatch(script("special"), user=alice, args=args)
    job_id = int(done.stdout)
    assert "gpumem" not in done.stderr
    assert "shard" not in str(plugin_cluster.job(job_id).get("TresPerNode"))
    assert plugin_cluster.job(job_id)["Reason"] != "BeginTime"
    assert gpumemd.wait_state(job_id, "passed")["reason"] == reason


def test_a_heterogeneous_job_passes(plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User) -> None:
    done = plugin_cluster.try_sbatch(script("het"), user=alice, args=["--gres=gpu:1", ":", "--gres=gpu:1"])
    assert done.returncode == 0
    components = [job for job in plugin_cluster.jobs() if job.get("HetJobId") == done.stdout.strip()]
    assert [job["TresPerNode"] for job in components] == ["gres:gpu:1"] * 2


def test_where_gpus_bring_cpus_with_them_jobs_pass(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User
) -> None:
    gpumemd.kill(signal.SIGTERM)
    plugin_cluster.scontrol("update", "PartitionName=gpu", "JobDefaults=DefCpuPerGPU=2")
    try:
        gpumemd.start()
        job_id = submit(plugin_cluster, alice, script("cpus", "shards=3"))
        assert gpumemd.wait_state(job_id, "passed")["reason"] == "partition gpu has JobDefaults per GPU"
    finally:
        plugin_cluster.scontrol("update", "PartitionName=gpu", "JobDefaults=")
        gpumemd.kill(signal.SIGTERM)


def test_where_slurm_counts_other_shards_jobs_pass_and_the_log_says_why(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User
) -> None:
    gpumemd.kill(signal.SIGTERM)
    gpumemd.start(shards=SHARDS // 2)  # a job with all of these would have half a GPU
    try:
        job_id = submit(plugin_cluster, alice, script("counts", "shards=3"))
        reason = f"a GPU of partition gpu has {SHARDS} shards in Slurm, {SHARDS // 2} in gpumem.toml"
        assert gpumemd.wait_state(job_id, "passed")["reason"] == reason
        assert f"jobs of partition gpu pass unchanged: {reason}" in gpumemd.log()
    finally:
        gpumemd.kill(signal.SIGTERM)


def test_a_hopeless_script_gets_its_gpu_at_once_and_is_not_held_again(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User
) -> None:
    text = script("hello", "fail=does_not_run_PyTorch")
    first = submit(plugin_cluster, alice, text)
    row = gpumemd.wait_state(first, "released")
    assert (row["got"], row["reason"]) == (f"shard:{SHARDS}", "does not run PyTorch")
    plugin_cluster.wait_state(first, "COMPLETED")
    done = plugin_cluster.try_sbatch(text, user=alice, args=GPU)
    assert "gpumem: this job keeps a whole GPU: does not run PyTorch" in done.stderr
    assert plugin_cluster.job(int(done.stdout))["TresPerNode"] == "gres:gpu:1"
    assert gpumemd.wait_state(int(done.stdout), "passed")["reason"] == "does not run PyTorch"


@pytest.mark.parametrize("fake", [f"shards={SHARDS}", "fits=no", "garbage=}}", "garbage={}"])
def test_an_estimate_that_frees_nothing_releases_the_whole_gpu(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User, fake: str
) -> None:
    job_id = submit(plugin_cluster, alice, script(fake, fake, LONG))
    assert gpumemd.wait_state(job_id, "released")["got"] == f"shard:{SHARDS}"
    assert f"shard:{SHARDS}" in plugin_cluster.wait_state(job_id, "RUNNING")["GRES"]


def test_a_changed_input_makes_a_script_unknown_again(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User
) -> None:
    train = alice.home / "train.py"
    train.write_text("one")
    os.chown(train, alice.uid, alice.gid)
    text = script("inputs", "shards=5 input=train.py")
    gpumemd.wait_state(submit(plugin_cluster, alice, text, cwd=alice.home), "applied")
    again = submit(plugin_cluster, alice, text, cwd=alice.home)
    assert gpumemd.wait_state(again, "rewritten")
    train.write_text("other")
    changed = submit(plugin_cluster, alice, text, cwd=alice.home)
    assert gpumemd.wait_state(changed, "applied")["action"] == "defer"


def test_an_estimate_for_a_name_is_for_no_other(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User
) -> None:
    text = script("named", "shards=5 job_name=first")
    gpumemd.wait_state(submit(plugin_cluster, alice, text, [*GPU, "-J", "first"]), "applied")
    assert gpumemd.wait_state(submit(plugin_cluster, alice, text, [*GPU, "-J", "first"]), "rewritten")
    other = submit(plugin_cluster, alice, text, [*GPU, "-J", "second"])
    assert gpumemd.wait_state(other, "applied")["action"] == "defer"


def test_credentials_of_a_job_are_written_nowhere(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User, go: Path
) -> None:
    in_script, in_argument, in_environment = (f"Canary{number}" + "x7" * 8 for number in range(3))
    lines = (
        f"export WANDB_API_KEY={in_script}\n: $HF_TOKEN\n"
        f": fake until={go} fail={in_script}_{in_argument}_{in_environment}_are_wrong"
    )
    job_id = plugin_cluster.sbatch(
        script("secrets", command=lines),
        user=alice,
        args=GPU,
        env={"HF_TOKEN": in_environment},
        script_args=["--api-key", in_argument],
    )
    gpumemd.wait_state(job_id, "tracing")
    written = [gpumemd.folder / "gpumemd.log", *gpumemd.folder.glob("history.db*")]

    def leaked() -> list[str]:
        return [path.name for path in written if b"Canary" in path.read_bytes()]

    assert leaked() == []
    go.touch()
    row = gpumemd.wait_state(job_id, "released")
    assert row["reason"] == "... ... ... are wrong"
    assert leaked() == []
    assert list((gpumemd.folder / "state" / "traces").iterdir()) == []


def test_begin_is_kept(plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User) -> None:
    job_id = submit(plugin_cluster, alice, script("later", "shards=4"), [*GPU, "--begin=now+1hour"])
    gpumemd.wait_state(job_id, "applied")
    job = plugin_cluster.job(job_id)
    assert (job["JobState"], job["TresPerNode"]) == ("PENDING", "gres:shard:4")
    start = time.mktime(time.strptime(job["EligibleTime"], "%Y-%m-%dT%H:%M:%S"))
    assert 3500 < start - time.time() < 3610


def test_jobs_are_not_held_where_deferring_is_off(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User
) -> None:
    gpumemd.kill(signal.SIGTERM)
    gpumemd.start(enabled=False)
    text = script("beside", "shards=6")
    traced = gpumemd.log().count("was traced")
    first = submit(plugin_cluster, alice, text)
    assert plugin_cluster.job(first)["TresPerNode"] == "gres:gpu:1"
    gpumemd.wait(lambda: gpumemd.log().count("was traced") > traced, "the trace beside")
    assert gpumemd.wait_state(submit(plugin_cluster, alice, text), "rewritten")["got"] == "shard:6"


def test_a_job_that_was_not_held_and_has_ended_is_traced_for_the_next_one(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User
) -> None:
    gpumemd.kill(signal.SIGTERM)
    gpumemd.start(enabled=False)
    text = script("ended", "shards=6", "true")
    traced = gpumemd.log().count("was traced")
    first = submit(plugin_cluster, alice, text)
    os.kill(gpumemd.pid, signal.SIGSTOP)  # it looks for the job only when that has ended
    try:
        plugin_cluster.wait_state(first, "COMPLETED")
    finally:
        os.kill(gpumemd.pid, signal.SIGCONT)
    gpumemd.wait(lambda: gpumemd.log().count("was traced") > traced, "the trace")
    assert gpumemd.wait_state(first, "passed")["reason"].startswith("not known yet")
    assert gpumemd.wait_state(submit(plugin_cluster, alice, text), "rewritten")["got"] == "shard:6"


def test_a_partition_can_be_observed_before_its_jobs_are_changed(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User
) -> None:
    gpumemd.kill(signal.SIGTERM)
    gpumemd.start(observe=True)
    text = script("observed", "shards=24")
    reason = "only observed: would get shard:24"
    for _ in range(2):  # traced beside, then known
        done = plugin_cluster.try_sbatch(text, user=alice, args=GPU)
        assert done.stderr == ""
        job_id = int(done.stdout)
        assert plugin_cluster.job(job_id)["TresPerNode"] == "gres:gpu:1"
        row = gpumemd.wait(
            lambda job_id=job_id: (row := gpumemd.jobs().get(job_id, {})).get("reason") == reason and row,
            "what the job would have got",
        )
        assert (row["action"], row["state"], row.get("got")) == ("pass", "passed", None)
        assert row["estimated_peak_bytes"] == int((24 * 1024**3 - 1000) / 1.03)


# ---- what goes wrong


def test_a_trace_that_outlives_the_budget_lets_the_job_start_and_is_kept(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User, go: Path
) -> None:
    gpumemd.kill(signal.SIGTERM)
    gpumemd.start(budget_s=5)
    text = script("slow", f"shards=9 until={go}", LONG)
    job_id = submit(plugin_cluster, alice, text)
    running = plugin_cluster.wait_state(job_id, "RUNNING", timeout_s=30)
    assert f"shard:{SHARDS}" in running["GRES"]
    go.touch()
    row = gpumemd.wait_state(job_id, "expired")
    assert row["got"] == f"shard:{SHARDS}"
    assert 3 < row["held_s"] <= 5  # Slurm counts in whole seconds
    assert gpumemd.wait_state(submit(plugin_cluster, alice, text), "rewritten")["got"] == "shard:9"


def test_a_service_that_dies_for_good_costs_the_job_only_the_budget(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User
) -> None:
    gpumemd.kill(signal.SIGTERM)
    gpumemd.start(budget_s=5)
    job_id = submit(plugin_cluster, alice, script("orphan", "shards=9 sleep=60", "sleep 1"))
    gpumemd.kill(signal.SIGKILL)
    running = plugin_cluster.wait_state(job_id, "RUNNING", "COMPLETED", timeout_s=30)
    assert running["TresPerNode"] == f"gres:shard:{SHARDS}"
    assert plugin_cluster.wait_state(job_id, "COMPLETED")["ExitCode"] == "0:0"


def test_a_service_that_comes_back_takes_up_its_jobs(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User, go: Path
) -> None:
    report = alice.home / "report.json"
    job_id = submit(plugin_cluster, alice, script("again", f"shards=11 until={go} report={report}"))
    gpumemd.wait_state(job_id, "tracing")
    gpumemd.wait(report.exists, "the trace to run")
    first = json.loads(report.read_text().splitlines()[0])
    gpumemd.kill(signal.SIGKILL)
    gpumemd.wait(lambda: not Path(f"/proc/{first['pid']}").exists(), "the trace to die with the service")
    assert plugin_cluster.job(job_id)["Reason"] == "BeginTime"
    go.touch()
    gpumemd.start()
    assert gpumemd.wait_state(job_id, "applied")["got"] == "shard:11"
    assert plugin_cluster.wait_state(job_id, "COMPLETED")["TresPerNode"] == "gres:shard:11"


def test_a_stopped_service_ends_well_and_takes_up_its_jobs_later(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User, go: Path
) -> None:
    job_id = submit(plugin_cluster, alice, script("stopped", f"shards=12 until={go}"))
    gpumemd.wait_state(job_id, "tracing")
    began = time.monotonic()
    assert gpumemd.kill(signal.SIGTERM) == 0
    assert time.monotonic() - began < 20
    assert not gpumemd.submit_socket.exists()
    go.touch()
    gpumemd.start()
    assert gpumemd.wait_state(job_id, "applied")["got"] == "shard:12"


def test_a_cancelled_job_ends_as_expired(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User, go: Path
) -> None:
    job_id = submit(plugin_cluster, alice, script("cancelled", f"shards=9 until={go}"))
    gpumemd.wait_state(job_id, "tracing")
    plugin_cluster.scancel(job_id)
    go.touch()
    assert gpumemd.wait_state(job_id, "expired")["reason"] == "the job ended before its trace was done"


@contextmanager
def pretender(path: Path, behaviour: str) -> Iterator[None]:
    """Something that is no gpumemd at the submit socket."""
    path.unlink(missing_ok=True)
    stop = threading.Event()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    if behaviour != "deaf":
        listener.listen(0 if behaviour == "never accepts" else 16)
    listener.settimeout(0.1)
    kept: list[socket.socket] = []

    def answer(connection: socket.socket) -> None:
        kept.append(connection)
        if behaviour == "garbage":
            connection.sendall(b"}} no HTTP at all\r\n\r\n{")
            connection.close()
        elif behaviour == "not json":
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n{not json")
            connection.close()
        elif behaviour == "nonsense":
            connection.recv(65536)
            text = b'{"action": "rewrite", "set": {"tres_per_node": 5, "user_id": "0"}, "begin_in_s": "x"}'
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + text)
            connection.close()
        elif behaviour == "error":
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\n{}")
            connection.close()
        elif behaviour == "endless":
            try:
                while not stop.is_set():
                    connection.sendall(b"x" * 65536)
            except OSError:
                pass
        elif behaviour == "trickle":
            try:
                while not stop.wait(0.01):
                    connection.sendall(b"H")
            except OSError:
                pass

    def serve() -> None:
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                continue
            connection.settimeout(2)
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    if behaviour not in ("never accepts", "deaf"):
        threading.Thread(target=serve, daemon=True).start()
    elif behaviour == "never accepts":
        for _ in range(3):  # fill the queue of connections
            waiting = socket.socket(socket.AF_UNIX)
            waiting.setblocking(False)
            try:
                waiting.connect(str(path))
            except OSError:
                break
            kept.append(waiting)
    try:
        yield
    finally:
        stop.set()
        listener.close()
        for connection in kept:
            connection.close()
        path.unlink(missing_ok=True)


FAULTS = ["hangs", "trickle", "never accepts", "deaf", "garbage", "not json", "nonsense", "error", "endless"]


@pytest.mark.parametrize("behaviour", [*FAULTS, "missing"])
def test_jobs_pass_unchanged_and_quickly_whatever_answers(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User, behaviour: str
) -> None:
    gpumemd.kill(signal.SIGTERM)
    path = gpumemd.submit_socket
    forget_faults(plugin_cluster)
    plain = min(_sbatch_s(plugin_cluster, alice, []) for _ in range(2))
    before = len(faults(plugin_cluster))
    if behaviour == "missing":
        took = _sbatch_s(plugin_cluster, alice, GPU)
    else:
        with pretender(path, behaviour):
            took = max(_sbatch_s(plugin_cluster, alice, GPU) for _ in range(2))
    assert took - plain < 1
    newest = max(plugin_cluster.jobs(), key=lambda job: int(job["JobId"]))
    assert newest["TresPerNode"] == "gres:gpu:1"
    told = faults(plugin_cluster)[before:]
    assert told and max(map(waited_ms, told)) < 90  # it was asked, and did fail
    forget_faults(plugin_cluster)


def forget_faults(cluster: Cluster) -> None:
    """Has the plug-in loaded again at the next submissions, as after an edit; so it asks again at once."""
    soon = time.time() + 1
    os.utime(cluster.folder / "job_submit.lua", (soon, soon))


def faults(cluster: Cluster) -> list[str]:
    return [line for line in cluster.log("slurmctld").splitlines() if "fault=" in line]


def waited_ms(fault: str) -> float:
    """How long slurmctld waited: 50 ms and what a busy machine adds; not 50 ms for each step."""
    return float(fault.split("ms=")[1].split()[0])


def _sbatch_s(cluster: Cluster, user: User, args: list[str]) -> float:
    text = script("fault", command="true")
    path = cluster.folder / "jobs" / "fault.sh"
    path.write_text(text)
    path.chmod(0o644)
    began = time.monotonic()
    cluster.sbatch(path, user=user, args=[*args, "--hold"])
    return time.monotonic() - began


def test_after_a_hang_the_next_submissions_do_not_wait(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User
) -> None:
    gpumemd.kill(signal.SIGTERM)
    forget_faults(plugin_cluster)
    time.sleep(2)  # from now on the plug-in stays loaded
    before = len(faults(plugin_cluster))
    with pretender(gpumemd.submit_socket, "hangs"):
        for _ in range(4):
            _sbatch_s(plugin_cluster, alice, GPU)
    (fault,) = faults(plugin_cluster)[before:]
    assert "no answer in time" in fault
    assert 45 < waited_ms(fault) < 90
    forget_faults(plugin_cluster)


# ---- who sees what


def test_users_see_their_own_jobs_and_root_sees_all(
    plugin_cluster: Cluster, gpumemd: Gpumemd, alice: User, bob: User
) -> None:
    hers = submit(plugin_cluster, alice, script("hers", "shards=3"))
    his = submit(plugin_cluster, bob, script("his", "shards=3"))
    gpumemd.wait_state(hers, "applied")
    gpumemd.wait_state(his, "applied")
    assert {hers, his} <= gpumemd.jobs().keys()
    rows = seen_by(bob, gpumemd)
    assert his in {row["job_id"] for row in rows}
    assert {row["user_id"] for row in rows} == {bob.uid}
    assert seen_by(bob, gpumemd, "--user", bob.name) == rows
    refused = hist(bob, gpumemd, "--user", alice.name)
    assert (refused.returncode, json.loads(refused.stdout)["status"]) == (1, "failed")
    assert "you can see your own jobs only" in refused.stderr


def hist(user: User, gpumemd: Gpumemd, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(commands() / "gpumem-hist"), "--config", str(gpumemd.config), "--json", *options]
    return user.run(command)


def seen_by(user: User, gpumemd: Gpumemd, *options: str) -> list[dict[str, Any]]:
    done = hist(user, gpumemd, *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
