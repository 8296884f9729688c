"""Which jobs share an estimate: those that start the same, and whose files are unchanged."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from estimator import catalog, essence, inputs, trace_run
from estimator.dry_run import Launch
from estimator.trace import InputFile
from settings import Estimate as Settings
from tests.estimator.callers import Caller

GPU = catalog.load().find("a100-80gb")
PYTHON = sys.executable
TRAINING = """
import torch, model
weight = torch.ones(model.SIZE, requires_grad=True, device="cuda")
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    weight.square().sum().backward()
    optimizer.step()
"""


def write(folder: Path, *lines: str) -> Path:
    path = folder / "job.sh"
    path.write_text("\n".join(["#!/bin/bash", "#SBATCH --gres=gpu:1", *lines, ""]))
    return path


def test_an_estimate_is_reused_until_something_changes(ordinary: Caller, open_folder: Path) -> None:
    cache = open_folder / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    ordinary.file("train.py", TRAINING)
    ordinary.file("model.py", "SIZE = 2**20")

    def estimate(*lines: str, **environment: str) -> tuple[bool, int]:
        script = ordinary.file(
            "job.sh",
            "\n".join(["#!/bin/bash", "#SBATCH --gres=gpu:1", *lines, f"{PYTHON} train.py > log.txt", ""]),
        )
        done = ordinary.gpumem(
            "estimate", "--gpu", "a100-80gb", "--json", script.name, XDG_CACHE_HOME=str(cache), **environment
        )
        assert (done.returncode, done.stderr) == (0, "")
        told = json.loads(done.stdout)
        return told["reused"], told["by_owner"]["parameters"]

    small = 2**20 * 4
    assert estimate() == (False, small)
    ordinary.file("README.md", "new")
    other = ["#SBATCH -J other --mail-type=END", "FOLDER=run7", "mkdir -p $FOLDER", "echo $FOLDER"]
    assert estimate(*other, SSH_TTY="/dev/pts/3") == (True, small)
    ordinary.file("model.py", "SIZE = 2**21")
    assert estimate() == (False, 2 * small)
    assert estimate() == (True, 2 * small)


@pytest.mark.parametrize(
    ("line", "program", "appears"),
    [
        ("[ -f env.sh ] && . ./env.sh", "", "env.sh"),
        ("if test -e ckpt.pt; then echo resume; fi", "", "ckpt.pt"),
        ("", "import os; os.path.exists('config.local.yaml')", "config.local.yaml"),
        ("", "import pathlib; pathlib.Path('runs/last.ckpt').is_file()", "runs/last.ckpt"),
        ("", "import glob; glob.glob('ckpts/*.pt')", "ckpts/1.pt"),
        ("ls ckpts/*.pt 2> /dev/null | tail -1", "", "ckpts/1.pt"),
    ],
)
def test_what_a_job_looks_for_is_noted(ordinary: Caller, line: str, program: str, appears: str) -> None:
    ordinary.file("train.py", f"{program}\n{TRAINING}".replace("model.SIZE", "8").replace(", model", ""))
    script = ordinary.file("job.sh", f"#!/bin/bash\n#SBATCH --gres=gpu:1\n{line}\n{PYTHON} train.py\n")
    done = ordinary.gpumem("estimate", "--gpu", "a100-80gb", "--json", "--no-cache", script.name)
    found = [InputFile.model_validate(one) for one in json.loads(done.stdout)["inputs"]]
    assert all(map(inputs.is_same, found))
    ordinary.file(appears)
    changed = [Path(file.path) for file in found if not inputs.is_same(file)]
    assert changed and all((ordinary.work / appears).is_relative_to(path) for path in changed)


def test_a_full_folder_does_not_hide_what_a_job_looks_for(ordinary: Caller) -> None:
    """Importing torch asks of every file beside the script whether it is a package."""
    for number in range(300):
        ordinary.file(f"run{number}.log")
    program = f"import torch, os; os.path.exists('ckpt.pt')\n{TRAINING}"
    ordinary.file("train.py", program.replace("model.SIZE", "8").replace(", model", ""))
    script = ordinary.file("job.sh", f"#!/bin/bash\n#SBATCH --gres=gpu:1\n{PYTHON} train.py\n")
    done = ordinary.gpumem("estimate", "--gpu", "a100-80gb", "--json", "--no-cache", script.name)
    paths = [one["path"] for one in json.loads(done.stdout)["inputs"] if one["mtime_ns"] is None]
    assert str(ordinary.work / "ckpt.pt") in paths
    assert not [path for path in paths if path.endswith("/__init__.py")]


@pytest.mark.parametrize(
    ("lines", "same"),
    [
        (["python3 train.py --lr 1"], True),
        (["LR=1", "echo $LR", "python3 train.py --lr $LR"], True),
        (["export SSH_TTY=x TERM=vt100", "time python3 train.py --lr 1"], True),
        (["python3 train.py --lr 2"], False),
        (["export BATCH=7", "python3 train.py --lr 1"], False),
        (["mkdir -p x; cp train.py x; cd x", "python3 train.py --lr 1"], False),
        (["python3 train.py --lr 1", "python3 train.py --lr 1"], False),
        (["python3 -O train.py --lr 1"], False),
    ],
)
def test_what_a_job_starts(tmp_path: Path, lines: list[str], same: bool) -> None:
    (tmp_path / "train.py").write_text("pass")
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)}

    def starts(*lines: str) -> list[str]:
        launch = Launch.of_script(write(tmp_path, *lines), (), tmp_path)
        return sorted(trace_run.starts(launch, GPU, Settings(), environment))

    first = starts("python3 train.py --lr 1")
    assert first
    assert (starts(*lines) == first) is same


@pytest.mark.parametrize(
    "line",
    [
        "source ~/venv/bin/activate",
        "conda activate torch",
        "module load cuda/12",
        "export OMP_NUM_THREADS=8 X=$(hostname)",
        "MASTER=$(scontrol show hostnames $SLURM_JOB_NODELIST)",
        "cd $SLURM_SUBMIT_DIR",
        "set -euo pipefail",
        "time srun --unbuffered python -u train.py --lr 3 --name ${RUN} > logs/$RUN.txt 2>&1",
        "CUDA_LAUNCH_BLOCKING=1 torchrun --nproc-per-node 4 train.py | tee -a train.log",
    ],
)
def test_plain_scripts_set_and_start(line: str) -> None:
    assert essence.is_plain(f"#!/bin/bash\n# remark\n{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "sed -i s/8/16/ config.yaml",
        "echo 'batch: 3' > config.yaml",
        "python configure.py > config.yaml",
        "python train.py < config.yaml",
        "python train.py && python test.py",
        "python train.py &",
        "if [ -f model.pt ]; then python test.py; fi",
        "for lr in 1 2; do python train.py $lr; done",
        "rm -rf checkpoints",
        "cp other.yaml config.yaml",
        "bash run.sh",
        "source setup.sh",
        "X=$(rm -f config.yaml)",
        "X=`cat config.yaml`",
        "python test.py out/*.pt",
        "./train",
        "srun bash -c 'python train.py'",
        "cat > config.yaml <<END\nbatch: 3\nEND",
    ],
)
def test_other_scripts_do_more(line: str) -> None:
    assert not essence.is_plain(f"#!/bin/bash\n{line}\npython train.py\n")
