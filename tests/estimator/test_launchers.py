"""What launchers are told."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.launchers import Launched, program_words, understand


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python /env/bin/torchrun train.py --lr 1", Launched("torchrun", 1, 1, "train.py", ("--lr", "1"))),
        (
            "python /env/bin/torchrun --nnodes=2 --nproc_per_node 4 --rdzv-backend c10d --standalone t.py",
            Launched("torchrun", 4, 2, "t.py", ()),
        ),
        ("python -m torch.distributed.run --nproc-per-node=gpu t.py", Launched("torchrun", None, 1, "t.py", ())),
        ("python -u -m torch.distributed.launch --use_env --nproc_per_node=2 t.py a",
         Launched("torchrun", 2, 1, "t.py", ("a",))),
        ("python /env/bin/torchrun --nnodes 1:4 -m pkg.train x",
         Launched("torchrun", 1, 1, "pkg.train", ("x",), is_module=True)),
        ("python /env/bin/torchrun --no-python ./run.sh", Launched("torchrun", 1, 1, "./run.sh", (), is_command=True)),
        (
            "python /env/bin/accelerate launch --num_machines 2 --num_processes 16 --multi_gpu "
            "--config_file a.yaml train.py --x",
            Launched("accelerate", 8, 2, "train.py", ("--x",)),
        ),
        ("python -m accelerate.commands.launch train.py", Launched("accelerate", None, 1, "train.py", ())),
        ("python /env/bin/deepspeed --num_gpus 2 --module pkg.train --deepspeed ds.json",
         Launched("deepspeed", 2, 1, "pkg.train", ("--deepspeed", "ds.json"), is_module=True)),
        ("python /env/bin/composer -n 4 -v train.py a", Launched("composer", 4, 1, "train.py", ("a",))),
        ("python /env/bin/composer --world_size 16 --nproc 8 --node_rank 0 -m pkg.train",
         Launched("composer", 16, 1, "pkg.train", (), is_module=True)),
        ("python /env/bin/composer train.py", Launched("composer", None, 1, "train.py", ())),
        ("python /env/bin/colossalai run --nproc_per_node 8 --num_nodes 2 --hostfile h t.py",
         Launched("colossalai", 8, 2, "t.py", ())),
        ("python /env/bin/fabric run --devices=2 --num-nodes 2 t.py", Launched("fabric", 2, 2, "t.py", ())),
        ("python /env/bin/fabric run --accelerator cuda --devices auto t.py", Launched("fabric", None, 1, "t.py", ())),
        ("python /env/bin/tune run --nproc_per_node 4 full_finetune_distributed --config c",
         Launched("tune", 4, 1, "full_finetune_distributed", ("--config", "c"))),
        ("python /env/bin/tune run lora_single_device --config c",
         Launched("tune", 1, 1, "lora_single_device", ("--config", "c"))),
        ("python /env/bin/tune download model", None),
        ("python /env/bin/accelerate config", None),
        ("python train.py torchrun", None),
        ("python -c 'import torch' torchrun", None),
        ("python", None),
        ("python /env/bin/torchrun --help", None),
    ],
)  # fmt: skip
def test_launchers(command: str, expected: Launched | None) -> None:
    assert understand(shlex.split(command)) == expected


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python -u -X faulthandler -W error train.py -m x", ["train.py", "-m", "x"]),
        ("python -um pkg.mod a", ["-m", "pkg.mod", "a"]),
        ("python3.11 -Im pkg", ["-m", "pkg"]),
        ("python -", ["-"]),
        ("python", []),
    ],
)
def test_the_program_of_an_interpreter(command: str, words: list[str]) -> None:
    assert program_words(shlex.split(command)) == words


@given(st.lists(st.text(max_size=20), max_size=8))
def test_any_words_are_read(words: list[str]) -> None:
    found = understand(["python", *words])
    assert found is None or found.nodes >= 1
