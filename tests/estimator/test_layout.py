"""Nodes, tasks and GPUs, as batch scripts and launchers ask for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimator import layout
from estimator.batch_script import parse
from estimator.dry_run import Launch
from estimator.layout import Layout


def script(*options: str) -> Layout:
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options)]
    return layout.of_script(parse(Path("train.sh"), "\n".join(lines)))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], Layout()),
        (["--gres=gpu:4"], Layout(1, 1, 4)),
        (["--nodes=2", "--gpus-per-node=4"], Layout(2, 2, 4)),
        (["-N2", "--gpus-per-node=a100:4", "--ntasks-per-node=4"], Layout(2, 8, 4)),
        (["-n 8", "--gpus-per-task=1", "-N 2"], Layout(2, 8, 4, 1)),
        (["--gpus=8", "-N 2"], Layout(2, 2, 4)),
        (["--ntasks=8", "--ntasks-per-node=4", "--gres=gpu:4"], Layout(2, 8, 4)),
        (["--gpus=8", "--nodes=2", "--ntasks-per-gpu=1"], Layout(2, 8, 4)),
        (["--gpus=8", "--gpus-per-node=4"], Layout(2, 2, 4)),
        (["--gpus=8", "--gpus-per-task=2"], Layout(1, 4, 8, 2)),
        (["--gpus-per-socket=2", "--sockets-per-node=2"], Layout(1, 1, 4)),
        (["--nodes=4", "--ntasks=2", "--gres=gpu:1"], Layout(2, 2, 1)),
        (["-N1 -n2", "hetjob", "-N4 --gres=gpu:4"], Layout(1, 2, 4)),
        (["--gres=gpu:99"], Layout(1, 1, layout.MOST_GPUS)),
    ],
)
def test_a_batch_script(options: list[str], expected: Layout) -> None:
    assert script(*options) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --n 4", Layout()),
        ("torchrun --nproc_per_node=4 train.py --nnodes 9", Layout(1, 1, 4)),
        ("torchrun --nnodes 2:4 --nproc-per-node 8 train.py", Layout(2, 2, 8)),
        ("python -m torch.distributed.run --nproc_per_node 2 train.py", Layout(1, 1, 2)),
        ("accelerate launch --multi_gpu --num_processes 4 train.py", Layout(1, 1, 4)),
        ("deepspeed --num_gpus 2 train.py", Layout(1, 1, 2)),
        ("srun -n 4 python train.py", Layout(1, 4, 4)),
        ("mpirun -np 16 python train.py", Layout(1, 16, 16)),
    ],
)
def test_a_command(command: str, expected: Layout) -> None:
    assert layout.of_command(command.split()) == expected


def test_ranks_that_are_asked_for_are_spread_over_nodes() -> None:
    assert Layout().with_ranks(4) == Layout(1, 1, 4)
    assert Layout().with_ranks(16) == Layout(2, 2, 8)
    assert Layout(2, 8, 4).with_ranks(32) == Layout(8, 32, 4)


def test_slurm_tells_of_components() -> None:
    lines = "#!/bin/sh\n#SBATCH -n2\n#SBATCH hetjob\n#SBATCH -N4 --gres=gpu:4\n"
    asked = parse(Path("train.sh"), lines)
    told = layout.slurm_variables(layout.of_script(asked), asked)
    names = ("SLURM_HET_SIZE", "SLURM_NTASKS_HET_GROUP_0", "SLURM_NNODES_HET_GROUP_1")
    assert [told[name] for name in names] == ["2", "2", "4"]


def test_slurm_tells_the_batch_script() -> None:
    told = layout.slurm_variables(Layout(2, 8, 4), None)
    names = ("SLURM_NNODES", "SLURM_NTASKS", "SLURM_TASKS_PER_NODE", "CUDA_VISIBLE_DEVICES")
    assert [told[name] for name in names] == ["2", "8", "4(x2)", "0,1,2,3"]


def test_tasks_are_told_only_if_they_were_asked_for() -> None:
    for options, told in ((["--gpus=4"], False), (["--gpus=4", "--ntasks=1"], True)):
        lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options)]
        asked = parse(Path("train.sh"), "\n".join(lines))
        assert ("SLURM_NTASKS" in layout.slurm_variables(layout.of_script(asked), asked)) is told


def test_accelerate_reads_its_processes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "ddp.yaml").write_text("distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 8\n")

    def of(command: str) -> Layout:
        return Launch.of_command(command.split(), tmp_path).layout

    assert of("accelerate launch --config_file ddp.yaml train.py") == Layout(2, 2, 4)
    assert of("accelerate launch --config_file=ddp.yaml --num_processes 4 train.py") == Layout(2, 2, 2)
    assert of("accelerate launch --config_file none.yaml train.py") == Layout()
    assert of("python train.py --config_file ddp.yaml") == Layout()
