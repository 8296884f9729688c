"""The stand-ins for the cluster's programs, run by a real shell."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from estimator import containers, shims


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    shims.write(
        folder,
        tmp_path,
        name="NVIDIA A100 80GB PCIe",
        uuids=["GPU-1"],
        memory_bytes=81920 * 1024**2,
        compute_capability=(8, 0),
    )
    return folder


def run(programs: Path, command: str, cwd: Path | None = None) -> str:
    environment = {"PATH": f"{programs}:{os.defpath}:/usr/bin:/bin", "SLURM_NTASKS": "4"}
    done = subprocess.run(
        ["sh", "-ec", command], env=environment, cwd=cwd, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize(
    "options",
    [
        "",
        "-n 4 -N1 -c8 --gres=gpu:1",
        "--ntasks 4 --nodes 1 --cpu-bind none",
        "-u -l --unbuffered --exclusive --label",
        "-ul --kill-on-bad-exit=1 -K --overlap --export ALL",
        "--mpi pmix --pty --",
        "-vv -J name -o out-%j.txt -e err -t 1:00",
    ],
)
def test_srun_drops_its_options_and_keeps_the_command(programs: Path, options: str) -> None:
    assert run(programs, f"srun {options} printf '<%s>' -n --ntasks 'a  b'") == "<-n><--ntasks><a  b>"


def test_srun_runs_one_task_where_it_is_told(programs: Path, tmp_path: Path) -> None:
    assert run(programs, "srun -n 4 sh -c 'echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NTASKS'") == "0 0 4\n"
    assert run(programs, f"srun --chdir={tmp_path} pwd; srun -D / pwd", Path("/")) == f"{tmp_path}\n/\n"


@pytest.mark.parametrize(
    ("options", "rank", "tasks"),
    [
        ("", "2 0 1", 4),
        ("-N 1 -n1", "0 0 0", 1),
        ("--ntasks=8", "4 0 1", 8),
        ("--ntasks-per-node 3", "3 0 1", 6),
    ],
)
def test_srun_may_run_the_middle_task(tmp_path: Path, options: str, rank: str, tasks: int) -> None:
    folder = tmp_path / "bin"
    shims.write(folder, tmp_path, name="A", uuids=["1", "2"], memory_bytes=1, compute_capability=(8, 0), middle=True
    )  # fmt: skip
    told = "echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURM_NTASKS"
    assert run(folder, f"export SLURM_NNODES=2; srun {options} sh -c '{told}'") == f"{rank} {tasks}\n"


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ("--gpus-per-task=a100:2", "0,1"),
        ("-n2 --gpus-per-task=1", "0"),
        ("--gres=gpu:1", "0"),
        ("--gres gpu:a100:2(S:0),craynetwork:1", "0,1"),
        ("-G3", "0,1,2"),
        ("-N2 --gpus=4", "0,1"),
        ("--gpus-per-node=8", "0,1,2,3"),
        ("--gres=none", ""),
        ("", "all"),
    ],
)
def test_a_step_sees_the_gpus_that_it_asks_for(programs: Path, options: str, seen: str) -> None:
    job = "SLURM_JOB_GPUS=0,1,2,3 CUDA_VISIBLE_DEVICES=all"
    options = " ".join(map(shlex.quote, options.split()))
    assert run(programs, f"{job} srun {options} sh -c 'echo $CUDA_VISIBLE_DEVICES'") == f"{seen}\n"


class Step:
    """A step that goes on until it is ended."""

    def __init__(self, programs: Path, options: str) -> None:
        environment = {
            "PATH": f"{programs}:{os.defpath}",
            "SLURM_JOB_GPUS": "0,1,2",
            "CUDA_VISIBLE_DEVICES": "all",
        }
        told = "echo $CUDA_VISIBLE_DEVICES; read end"
        command = ["srun", *options.split(), "sh", "-c", told]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def gpus(self) -> str:
        """What it sees, once it has begun."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        self._process.communicate("end\n")


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ("--exact --gres=gpu:1", ["0", "1", "2"]),
        ("--overlap --gres=gpu:1", ["0", "0", "0"]),
        ("", ["all", "all"]),
    ],
)
def test_steps_side_by_side_have_gpus_of_their_own(programs: Path, options: str, seen: list[str]) -> None:
    steps = [Step(programs, options) for _ in seen]
    assert sorted(step.gpus() for step in steps) == seen
    for step in steps:
        step.end()


def test_a_step_waits_for_its_gpus(programs: Path) -> None:
    first = Step(programs, "--gres=gpu:2")
    assert first.gpus() == "0,1"
    second = Step(programs, "--gres=gpu:1")
    assert second.gpus() == "2"
    third = Step(programs, "--gres=gpu:2")
    first.end()
    assert third.gpus() == "0,1"
    for step in (second, third):
        step.end()


def test_mpirun_drops_its_options_and_tells_of_all_processes(programs: Path) -> None:
    told = "mpirun -np 8 --mca btl ^openib -x A=1 --bind-to none sh -c 'echo $OMPI_COMM_WORLD_SIZE $A'"
    assert run(programs, told) == "8 1\n"


def test_nvidia_smi_lists_every_gpu(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    shims.write(
        folder, tmp_path, name="A", uuids=["GPU-1", "GPU-2"], memory_bytes=1, compute_capability=(8, 0)
    )
    assert run(folder, "nvidia-smi --query-gpu=index,uuid --format=csv,noheader") == "0, GPU-1\n1, GPU-2\n"


def test_srun_gives_back_the_status_of_its_task(programs: Path) -> None:
    assert run(programs, "srun sh -c 'exit 7' || echo $?") == "7\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-L", "GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-1)\n"),
        ("", "GPU 0: NVIDIA A100 80GB PCIe, 81920 MiB, idle\n"),
        (
            "--query-gpu=name,memory.total --format=csv",
            "name, memory.total\nNVIDIA A100 80GB PCIe, 81920 MiB\n",
        ),
        ("--query-gpu=memory.free,fan.speed --format=csv,noheader,nounits", "81920, [N/A]\n"),
        ("--query-gpu=count,compute_cap,index --format=csv,noheader", "1, 8.0, 0\n"),
    ],
)
def test_nvidia_smi_shows_the_pretend_gpu(programs: Path, arguments: str, expected: str) -> None:
    assert run(programs, f"nvidia-smi {arguments}") == expected


def test_the_others_do_nothing_and_at_once(programs: Path) -> None:
    assert run(programs, "sleep 1000; sbatch next.sh; scancel 1; scontrol requeue 1") == ""
    assert run(programs, "scontrol show hostnames $SLURM_JOB_NODELIST") == "localhost\n"


def test_what_hides_the_programs_of_the_host(programs: Path, tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    for name in ("srun", "busybox"):
        (host / name).write_text("#!/bin/sh\n")
        (host / name).chmod(0o755)
    (host / "sleep").symlink_to("busybox")
    assert shims.covered(programs, str(host)) == {host / "srun": programs / "srun"}


def test_what_is_not_done_is_noted(programs: Path, tmp_path: Path) -> None:
    assert run(programs, "rsync -a 'from here' there; sleep 1000; nvidia-smi -L > /dev/null") == ""
    noted = sorted(path.read_bytes().split(b"\0")[1:-1] for path in tmp_path.glob("skipped-*"))
    assert noted == [[b"rsync", b"-a", b"from here", b"there"], [b"sleep", b"1000"]]


@pytest.mark.parametrize(
    ("source", "why"), [("host:data/", shims.NETWORK), ("/nowhere/data/", shims.NOT_HERE)]
)
def test_why_nothing_was_copied(programs: Path, tmp_path: Path, source: str, why: str) -> None:
    run(programs, f"rsync -a --info=progress2 {source} there")
    (note,) = tmp_path.glob("skipped-*")
    assert note.read_bytes().decode().split("\0")[0] == why


def test_rsync_links_what_lies_here(programs: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "train").mkdir(parents=True)
    (data / "train" / "1.bin").write_text("1")
    (data / "meta.json").write_text("{}")
    node = tmp_path / "node"
    node.mkdir()
    run(programs, f"rsync -a --exclude train {data}/ {node}/a; rsync -av {data} {node}", tmp_path)
    run(programs, f"rsync data/meta.json node/m.json -q; rsync -a --delete {data}/train {node}/a/", tmp_path)
    assert (node / "a" / "train" / "1.bin").read_text() == "1"
    assert (node / "data" / "meta.json").read_text() == "{}"
    assert (node / "m.json").read_text() == "{}"
    assert (data / "train").is_dir() and sorted(path.name for path in data.iterdir()) == [
        "meta.json",
        "train",
    ]
    assert list(tmp_path.glob("skipped-*")) == []


def in_image(tmp_path: Path, command: str, real: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `command`, with an apptainer and a ch-run on this machine that do what `real` says."""
    host = tmp_path / "host"
    host.mkdir()
    if real is not None:
        for program in (host / "apptainer", host / "ch-run"):
            program.write_text(f"#!/bin/sh\n{real}\n")
            program.chmod(0o755)
    folder = tmp_path / "bin"
    shims.write(
        folder,
        tmp_path,
        name="A",
        uuids=["1"],
        memory_bytes=1,
        compute_capability=(8, 0),
        search_path=str(host),
    )
    environment = {"PATH": f"{folder}:{os.defpath}:/usr/bin:/bin"}
    return subprocess.run(
        ["sh", "-c", command], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )


def test_apptainer_gets_our_files_and_the_library_to_load(tmp_path: Path) -> None:
    given = "apptainer -q exec --nv --cleanenv --env A=1 -B /data:/data 'my image' python train.py exec"
    (tmp_path / "my image").mkdir()
    done = in_image(tmp_path, given, 'printf "<%s>" "$@"')
    ours = (
        f"<--userns><--bind><{tmp_path}><--bind><{containers.OURS}>"
        f"<--env><LD_PRELOAD={tmp_path}/start/libgpumem_start.so>"
    )
    assert done.stdout == (
        f"<-q><exec>{ours}<--nv><--cleanenv><--env><A=1><-B></data:/data><my image><python><train.py><exec>"
    )
    assert list(tmp_path.glob("skipped-*")) == []


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("docker://pytorch/pytorch:latest", "has to be fetched, and a dry run has no network"),
        ("missing.sif", "missing.sif: no such image"),
        ("there.sif", "there.sif: the image cannot be mounted"),  # outside of the containment
        ("--overlay there.sif:ro folder", "there.sif:ro: the image cannot be mounted"),
        ("-B /a:/b,there.sif:/c:image-src=/,ro folder", "there.sif:/c:image-src=/,ro: the image cannot be"),
    ],
)
def test_what_keeps_an_image_from_being_started_is_said(tmp_path: Path, image: str, why: str) -> None:
    (tmp_path / "there.sif").touch()
    (tmp_path / "folder").mkdir()
    done = in_image(tmp_path, f"apptainer exec {image} true", "exit 1")
    assert done.returncode == 255
    assert why in done.stderr


def test_an_image_file_is_not_written_over(tmp_path: Path) -> None:
    """Apptainer writes over a folder only."""
    (tmp_path / "folder").mkdir()
    done = in_image(tmp_path, "apptainer exec --writable-tmpfs folder true", 'echo "$@"')
    assert done.stdout.endswith(" --writable-tmpfs folder true\n")


def test_an_apptainer_that_a_module_brings_is_run(tmp_path: Path) -> None:
    """It is nowhere on the PATH that the dry run begins with."""
    own = tmp_path / "module" / "apptainer"
    own.parent.mkdir()
    own.write_text('#!/bin/sh\necho "$@"\n')
    own.chmod(0o755)
    done = in_image(tmp_path, f"PATH=$PATH:{own.parent}; apptainer exec --nv {own.parent} true")
    assert done.stdout.endswith(f" --nv {own.parent} true\n"), done.stderr


def test_charliecloud_gets_our_files_and_the_library_to_load(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    given = "LD_PRELOAD=/a ch-run -w --set-env=A=1 -b /data image -- python train.py -b"
    done = in_image(tmp_path, given, 'printf "<%s>" "$@"')
    ours = (
        f"<--write-fake><--bind={tmp_path}><--bind={containers.OURS}>"
        f"<--set-env=LD_PRELOAD={tmp_path}/start/libgpumem_start.so:/a>"
    )
    assert done.stdout == f"<--set-env=A=1><-b></data>{ours}<image><--><python><train.py><-b>"


def test_images_are_not_pulled(tmp_path: Path) -> None:
    assert (
        in_image(tmp_path, "apptainer pull a.sif docker://b && apptainer --version", "echo 1").stdout == "1\n"
    )


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("singularity exec --nv a.sif python train.py", containers.NOT_INSTALLED),
        ("podman-hpc run --gpu image python train.py", containers.NOT_TRACED),
        (
            "srun -n1 --container-image=nvcr.io/x --container-mounts=/a:/a python train.py",
            containers.NOT_TRACED,
        ),
        ("enroot start --rw image python train.py", containers.NOT_TRACED),
    ],
)
def test_a_container_without_a_way_in_is_said(tmp_path: Path, command: str, why: str) -> None:
    done = in_image(tmp_path, command)
    assert done.returncode != 0 and why in done.stderr
    (noted,) = (path.read_text().split("\0")[0] for path in tmp_path.glob("skipped-*"))
    assert noted == why


def test_git_is_itself_but_for_what_needs_the_network(tmp_path: Path) -> None:
    real = tmp_path / "host" / "git"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\necho real git "$@"\n')
    real.chmod(0o755)
    folder = tmp_path / "bin"
    shims.write(
        folder, tmp_path, name="A", uuids=["1"], memory_bytes=1, compute_capability=(8, 0),
        search_path=str(real.parent),
    )  # fmt: skip
    assert run(folder, "git -q push; git rev-parse push") == "real git rev-parse push\n"
