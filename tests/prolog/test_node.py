from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prolog.jobdir import GpuBefore, JobDir, JobRecord
from prolog.node import Node, job_of, this_node
from prolog.nvml import Gpu, NvmlProblem, find
from prolog.processes import Process
from prolog.tally import GpuTally, Tally
from settings import Settings
from tests.prolog.pretend_node import PretendNode

UUID = "GPU-8b8f0d5e-0c4f-4d35-a1f7-8f8f8f8f8f8f"


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ({"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"}, ("0", "1")),
        ({"SLURM_JOB_GPUS": "3"}, ("3",)),
        ({"SLURM_JOB_GPUS": "3", "CUDA_VISIBLE_DEVICES": UUID}, (UUID,)),
        ({"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "MIG-1a"}, ("MIG-1a",)),
        ({"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": f"{UUID},0"}, ("0",)),
        ({"SLURM_JOB_GPUS": "1,../../x,1,,-2"}, ("1",)),
        ({"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "MIG-GPU-1/2/3"}, ("MIG-GPU-1/2/3",)),
        ({}, ()),
    ],
)
def test_the_gpus_of_a_job(environment: dict[str, str], gpus: tuple[str, ...]) -> None:
    assert job_of({"SLURM_JOB_ID": "1", **environment}).gpus == gpus


def test_the_job_in_the_environment() -> None:
    job = job_of(
        {
            "SLURM_JOB_ID": "12",
            "SLURM_JOB_UID": "1000",
            "SLURM_JOB_EXIT_CODE": "256",
            "SLURMD_NODENAME": "gpu7",
        }
    )
    assert (job.job_id, job.user_id, job.exit_status, job.node, job.cluster) == (12, 1000, 256, "gpu7", None)
    assert job_of({"SLURM_JOB_ID": "12", "SLURM_JOB_UID": "4294967294x"}).user_id is None
    with pytest.raises(ValueError, match="invalid literal"):
        job_of({})


def test_settings_that_cannot_be_used_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gpumem.toml"
    monkeypatch.setenv("GPUMEM_CONFIG", str(path))
    path.write_text("[measurement]\nsample_interval_s = 'often'\n")
    node = this_node()
    assert node.settings == Settings()
    assert "sample_interval_s" in node.problems[0]


def record(job_id: int, *names: str) -> JobRecord:
    gpus = tuple(GpuBefore(name, Gpu(f"GPU-{name}", "m", 1, False), True, {7: 8}) for name in names)
    return JobRecord("id", job_id, 0, None, "n1", 1.5, Process(os.getpid(), 3), gpus, ("p",))


def test_a_job_folder_keeps_what_it_is_given(tmp_path: Path) -> None:
    job = JobDir(tmp_path / "jobs", 7)
    assert (job.record(), job.tally(), job.marker()) == (None, None, None)
    job.create(record(7, "0"))
    assert job.record() == record(7, "0")
    tally = Tally({"0": GpuTally(peak_bytes=5)}, samples=2)
    job.write_tally(tally)
    assert job.tally() == tally
    marker = job.marker()
    job.create(record(7, "0"))
    assert job.tally() is None
    assert job.marker() != marker
    job.remove()
    job.write_tally(tally)
    assert not job.path.exists()


@pytest.mark.parametrize(
    "garbage", ["", "{", "[]", "{}", '{"gpus": 3}', "null", '{"gpus": [], "problems": [], "sampler": 1}']
)
def test_garbage_in_a_job_folder_is_nothing(tmp_path: Path, garbage: str) -> None:
    job = JobDir(tmp_path, 7)
    job.create(record(7, "0"))
    (job.path / "job.json").write_text(garbage)
    (job.path / "state.json").write_text(garbage)
    assert job.record() is None
    assert job.tally() is None


def test_jobs_on_one_gpu_know_of_each_other_even_afterwards(tmp_path: Path) -> None:
    first, second, third = (JobDir(tmp_path, number) for number in (1, 2, 3))
    for job, gpus in ((first, ["0"]), (second, ["0", "MIG-GPU-1/2/3"]), (third, ["2"])):
        job.create(record(int(job.path.name), *gpus))
        job.mark_shared()
    assert (
        first.is_shared("0"),
        second.is_shared("0"),
        second.is_shared("MIG-GPU-1/2/3"),
        third.is_shared("2"),
    ) == (
        True,
        True,
        False,
        False,
    )
    second.remove()
    assert first.is_shared("0")


def test_the_log_is_a_small_file_where_there_is_no_syslog(tmp_path: Path) -> None:
    if Path("/dev/log").exists():
        pytest.skip("there is a syslog")
    settings = Settings.model_validate({"measurement": {"run_dir": tmp_path / "jobs"}})
    node = Node(settings)
    node.log("first")
    assert node.log_path.read_text().endswith("first\n")
    node.log_path.write_text("x" * 1024**2)
    node.log("one")
    node.log("two")
    assert node.log_path.stat().st_size < 1000
    Node(Settings.model_validate({"measurement": {"run_dir": "/proc/none/jobs"}})).log("nowhere")


@pytest.mark.usefixtures("nvml")
def test_the_reader_on_real_pynvml(node: PretendNode) -> None:
    # where libraries are looked for is settled when a process starts
    code = (
        "from prolog.nvml import *\n"
        "r = NvmlReader()\n"
        "for name in ('5', 'GPU-none', '1'):\n"
        "    try: print(find(r, name).uuid)\n"
        "    except NvmlProblem as p: print(p.kind)\n"
        "u = find(r, '0').uuid\n"
        "try: r.accounts(u)\n"
        "except NvmlProblem as p: print(p.kind)\n"
        "r.enable_accounting(u); print(r.accounting(u), r.accounts(u), r.account(u, 1), r.usages(u)); r.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=node.environment(None), capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "invalid_argument",
        "not_found",
        "GPU-11111111-1111-1111-1111-111111111111",
        "not_supported",
        "True [] None []",
    ], done.stderr


def test_without_the_library_the_problem_has_a_name() -> None:
    program = (
        "from prolog.nvml import NvmlProblem, NvmlReader\n"
        "try: NvmlReader()\n"
        "except NvmlProblem as problem: print(problem.kind)\n"
    )  # in a process of its own: this one may have loaded a stand-in
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "library_not_found\n"


class Split:
    """Only what `find` asks of a reader on a node with MIG."""

    def any_mig(self) -> bool:
        return True

    def gpu(self, name: int | str) -> Gpu:
        return Gpu(str(name), None, None, mig=True)


def test_indices_are_not_believed_where_mig_is_on() -> None:
    with pytest.raises(NvmlProblem, match="MIG"):
        find(Split(), "0")  # type: ignore[arg-type]
    assert find(Split(), "MIG-1").mig  # type: ignore[arg-type]


def test_notes_of_jobs_that_ended_without_a_record_do_not_pile_up(tmp_path: Path) -> None:
    for job_id in (1, 2):
        JobDir(tmp_path, job_id).note_end()
    os.utime(tmp_path / "ended-1", (0, 0))
    JobDir(tmp_path, 3).note_end()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ended-2", "ended-3"]
