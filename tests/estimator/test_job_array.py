"""Job arrays: their tasks, and when one trace does for all of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from estimator import job_array
from tests.estimator.callers import Caller


@pytest.mark.parametrize(
    ("text", "first", "last", "count", "step"),
    [
        ("7", 7, 7, 1, "1"),
        ("0-15%4", 0, 15, 16, "1"),
        ("0-15:4", 0, 12, 4, "4"),
        ("9,1-3,2", 1, 9, 4, "1"),
    ],
)
def test_indices_as_sbatch_reads_them(text: str, first: int, last: int, count: int, step: str) -> None:
    array = job_array.parse(text)
    assert array is not None
    assert (array.first, array.last, array.count) == (first, last, count)
    told = array.variables(last)
    assert (told["SLURM_ARRAY_TASK_ID"], told["SLURM_ARRAY_TASK_STEP"]) == (str(last), step)


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-2:0", "1,,2", "-1", "1-99999999", "1 2"])
def test_what_are_no_indices(text: str) -> None:
    assert job_array.parse(text) is None


def test_when_the_index_may_matter(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("python train.py --seed $SLURM_ARRAY_TASK_ID\n")
    (tmp_path / "env.sh").write_text("module load cuda\n")
    (tmp_path / "train.py").write_text("import model\n")
    model = tmp_path / "model.py"
    model.write_text("seed = os.environ['SLURM_ARRAY_TASK_ID']\n")

    def differ(script: str, *arguments: str, read: tuple[Path, ...] = ()) -> bool:
        return job_array.may_differ(script, arguments, tmp_path, read)

    assert differ("python train.py $SLURM_ARRAY_TASK_ID")
    assert differ("bash ./run.sh")
    assert differ('bash "$1"', "run.sh")
    assert differ("bash elsewhere.sh")
    assert differ("python train.py", read=(model,))
    assert not differ("source env.sh\npython train.py", "--lr", "1", read=(tmp_path / "train.py",))


BIN = Path(sys.executable).parent
TRAIN = """import os, sys, torch
width = int(sys.argv[1]) if len(sys.argv) > 1 else 256
model = torch.nn.Linear(width, width).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    model(torch.ones(8, width, device="cuda")).sum().backward()
    opt.step()
"""


def estimate(caller: Caller, script: str, code: int = 0) -> dict[str, object]:
    caller.file("train.py", TRAIN)
    caller.file("job.sh", f"#!/bin/bash\n#SBATCH --array=1-4096:4095\nexport PATH={BIN}:$PATH\n{script}\n")
    done = caller.gpumem("estimate", "--gpu", "a100-80gb", "--json", "job.sh")
    assert done.returncode == code, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_tasks_that_do_the_same_have_one_trace(ordinary: Caller) -> None:
    assert estimate(ordinary, "python3 train.py")["status"] == "exact"


def test_tasks_that_need_the_same_have_a_bounded_estimate(ordinary: Caller) -> None:
    told = estimate(ordinary, "SEED=$SLURM_ARRAY_TASK_ID python3 train.py")
    assert told["status"] == "bounded"
    assert "of 2 array tasks the first and the last were traced" in str(told["notes"])


def test_tasks_that_differ_have_none(ordinary: Caller) -> None:
    told = estimate(ordinary, "python3 train.py $((SLURM_ARRAY_TASK_ID * 2))", 1)
    assert "tasks of the array differ: 1 and 4096 need 0.0 and" in str(told["reason"])
