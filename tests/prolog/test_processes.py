from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prolog.processes import JobProcesses, Process, cgroup_job, cgroup_sluid, is_running, start_ticks

SLUID = "s1HK3P0ZV8R4WQ"


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("4:memory:/slurm/uid_1000/job_123/step_0/task_0\n", 123),
        ("9:devices:/slurm_n1/uid_0/job_7/step_batch\n0::/\n", 7),
        ("5:devices:/docker/abc/slurm/uid_1/job_9/step_0\n", 9),
        ("0::/system.slice/slurmstepd.scope/job_55/step_batch/user/task_0\n", 55),
        ("0::/system.slice/n1_slurmstepd.scope/job_56/step_0/user\n", 56),
        ("0::/system.slice/slurmstepd.scope/job_57\n", 57),
        ("0::/system.slice/slurmstepd.scope/system\n", None),
        ("0::/system.slice/slurmd.service\n", None),
        (f"0::/system.slice/slurmstepd.scope/{SLUID}/step_0/user\n", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_8/x\n", None),
        ("0::/job_5\n", None),
        ("4:cpu:/slurm/uid_x/job_5\n", None),
        ("no cgroup at all", None),
        ("", None),
    ],
)
def test_the_job_id_in_a_cgroup(text: str, job: int | None) -> None:
    assert cgroup_job(text) == job


def test_the_sluid_in_a_cgroup() -> None:
    assert cgroup_sluid(f"0::/system.slice/slurmstepd.scope/{SLUID}/step_0/user\n") == SLUID
    assert cgroup_sluid("0::/system.slice/slurmstepd.scope/job_7/step_0\n") is None
    assert cgroup_sluid("0::/system.slice/slurmstepd.scope/system\n") is None


# ---- real processes


Spawn = Callable[..., int]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts real processes; returns the `pid` that the code sets, by default its own."""
    started: list[subprocess.Popen[str]] = []

    def start(environment: dict[str, str], code: str = "pid = os.getpid()", user: int | None = None) -> int:
        program = f"import os, sys, time\n{code}\nprint(pid, flush=True)\ntime.sleep(60)"
        command = [sys.executable, "-I", "-c", program]
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, user=user, cwd="/")
        )
        assert started[-1].stdout
        return int(started[-1].stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_environment_tells_the_job(spawn: Spawn) -> None:
    own, other, none = (
        spawn(environment) for environment in ({"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "77"}, {})
    )
    job = JobProcesses(7, os.getuid())
    assert job.look_up(own) == (Process(own, start_ticks(own) or 0), True)
    assert job.look_up(other) == (Process(other, start_ticks(other) or 0), False)
    assert job.look_up(none) == (Process(none, start_ticks(none) or 0), False)


def test_a_child_without_environment_is_known_by_its_parent(spawn: Spawn) -> None:
    code = (
        "import subprocess\n"
        "pid = subprocess.Popen([sys.executable, '-I', '-c', 'import time; time.sleep(60)'], env={}).pid"
    )
    child = spawn({"SLURM_JOB_ID": "7"}, code)
    found = JobProcesses(7, os.getuid()).look_up(child)
    os.kill(child, signal.SIGKILL)
    assert found is not None and found[1]


def test_a_grandchild_in_a_session_of_its_own_still_belongs(spawn: Spawn) -> None:
    code = (
        "reading, writing = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.write(writing, str(os.getpid()).encode())\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "pid = int(os.read(reading, 20))"
    )
    grandchild = spawn({"SLURM_JOB_ID": "7"}, code)
    found = JobProcesses(7, os.getuid()).look_up(grandchild)
    os.kill(grandchild, signal.SIGKILL)
    assert found is not None and found[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_nobody_can_put_memory_on_anothers_account(spawn: Spawn) -> None:
    impostor = spawn({"SLURM_JOB_ID": "7"}, user=65534)
    found = JobProcesses(7, 0).look_up(impostor)
    assert found is not None and not found[1]
    found = JobProcesses(7, 65534).look_up(impostor)
    assert found is not None and found[1]


def test_ended_processes_are_none() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    until = time.monotonic() + 5
    while start_ticks(process.pid) is not None and time.monotonic() < until:  # now a zombie
        time.sleep(0.01)
    assert JobProcesses(7, None).look_up(process.pid) is None
    process.wait()
    assert JobProcesses(7, None).look_up(process.pid) is None
    assert not is_running(Process(process.pid, 1))
    assert is_running(Process(os.getpid(), start_ticks(os.getpid()) or 0))


# ---- what cannot be had here: other Slurms, a PID used twice


class Proc:
    """A /proc of our own making."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self, pid: int, start: int, *, cgroup: str = "", environ: str = "", uid: int = 1000, parent: int = 1
    ) -> None:
        path = self.folder / str(pid)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        fields = ["S", str(parent), *["0"] * 17, str(start), "0"]
        (path / "stat").write_text(f"{pid} (a (very) odd) name) {' '.join(fields)}\n")
        (path / "cgroup").write_text(cgroup)
        (path / "environ").write_text(environ)
        (path / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_pid_used_again_is_another_process(proc: Proc) -> None:
    job = JobProcesses(7, 1000, proc.folder)
    proc.add(50, 1000, environ="SLURM_JOB_ID=7\0PATH=/bin\0")
    assert job.look_up(50) == (Process(50, 1000), True)
    proc.add(50, 2000, environ="SLURM_JOB_ID=8\0")
    assert job.look_up(50) == (Process(50, 2000), False)


def test_the_cgroup_is_believed_before_the_environment(proc: Proc) -> None:
    job = JobProcesses(7, 1000, proc.folder)
    proc.add(
        50, 1, cgroup="0::/system.slice/slurmstepd.scope/job_8/step_0/user\n", environ="SLURM_JOB_ID=7\0"
    )
    proc.add(51, 1, cgroup="4:memory:/slurm/uid_1000/job_7/step_0\n", environ="")
    assert job.look_up(50) == (Process(50, 1), False)
    assert job.look_up(51) == (Process(51, 1), True)


def test_a_sluid_is_learnt_from_a_process_that_tells_its_job(proc: Proc) -> None:
    job = JobProcesses(7, 1000, proc.folder)
    cgroup = f"0::/system.slice/slurmstepd.scope/{SLUID}/step_0/user\n"
    other = cgroup.replace("HK", "ZZ")
    proc.add(49, 1, cgroup=other, environ=f"SLURM_JOB_ID=7\0SLURM_JOB_SLUID={SLUID}\0")
    proc.add(50, 1, cgroup=cgroup, environ=f"SLURM_JOB_ID=7\0SLURM_JOB_SLUID={SLUID}\0")
    proc.add(51, 1, cgroup=cgroup, environ="", uid=0)
    proc.add(52, 1, cgroup=other, environ="SLURM_JOB_ID=7\0")
    assert job.look_up(49) == (Process(49, 1), False)
    assert [job.look_up(pid) for pid in (50, 51)] == [(Process(50, 1), True), (Process(51, 1), True)]
    assert job.look_up(52) == (Process(52, 1), False)
