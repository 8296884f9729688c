"""What `sbatch` would read out of a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimator.batch_script import MAX_BYTES, GpuRequest, NotABatchScript, parse, read

SCRIPT = Path("train.sh")


def options(*lines: str) -> dict[str, str]:
    return dict(parse(SCRIPT, "\n".join(["#!/bin/bash", *lines])).options)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#SBATCH --gres=gpu:1", {"gres": "gpu:1"}),
        ("#SBATCH --gres gpu:1", {"gres": "gpu:1"}),
        ("#SBATCH -p gpu -N2 -n 4", {"partition": "gpu", "nodes": "2", "ntasks": "4"}),
        ("#SBATCH -J'my job' # a remark", {"job-name": "my job"}),
        ("#SBATCH --exclusive --mem=4G", {"exclusive": "", "mem": "4G"}),
        ("##SBATCH --mem=4G", {}),
        ("# SBATCH --mem=4G", {}),
        ("#SBATCH --comment='unclosed", {}),
    ],
)
def test_an_option_line(line: str, expected: dict[str, str]) -> None:
    assert options(line) == expected


def test_options_end_at_the_first_command_and_later_ones_win() -> None:
    lines = ["", "# remark", "#SBATCH --mem=1G", "#SBATCH --mem=2G", "date", "#SBATCH --mem=3G"]
    assert options(*lines) == {"mem": "2G"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--gres=gpu:1", GpuRequest(1, "node")),
        ("--gres=gpu", GpuRequest(1, "node")),
        ("--gres=gres:gpu:a100:2", GpuRequest(2, "node", "a100")),
        ("--gres=tmp:10,gpu:v100", GpuRequest(1, "node", "v100")),
        ("--gpus=4", GpuRequest(4, "job")),
        ("-G a100:4", GpuRequest(4, "job", "a100")),
        ("--gpus-per-node=h100:1", GpuRequest(1, "node", "h100")),
        ("--gpus-per-task=1", GpuRequest(1, "task")),
        ("--gres=shard:4", None),
        ("--gres=gpu:0", None),
        ("--mem=4G", None),
    ],
)
def test_gpu_request(line: str, expected: GpuRequest | None) -> None:
    assert parse(SCRIPT, f"#!/bin/sh\n#SBATCH {line}\n").gpus == expected


def test_what_else_is_read() -> None:
    script = parse(SCRIPT, "#!/usr/bin/env python3 -u\n#SBATCH -p a,b -N 2-4 -D /data\n")
    assert script.interpreter == ("/usr/bin/env", "python3 -u")
    assert (script.partition, script.nodes, script.ntasks) == ("a", 2, 1)
    assert script.chdir == Path("/data")
    assert script.job_name == "train.sh"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "first line must begin with #!"),
        ("python train.py\n", "first line must begin with #!"),
        ("#!\n", "first line must begin with #!"),
        ("#!/bin/bash\r\necho\r\n", "dos2unix"),
    ],
)
def test_what_sbatch_refuses(text: str, reason: str) -> None:
    with pytest.raises(NotABatchScript, match=reason):
        parse(SCRIPT, text)


def test_a_python_file_is_told_how_to_be_estimated() -> None:
    with pytest.raises(NotABatchScript, match="gpumem estimate -- python"):
        parse(Path("train.py"), "import torch\n")


def test_a_file_that_is_not_there_and_one_that_is_too_big(tmp_path: Path) -> None:
    with pytest.raises(NotABatchScript, match=r"gone\.sh: No such file or directory"):
        read(tmp_path / "gone.sh")
    with (tmp_path / "big.sh").open("wb") as file:
        file.write(b"#!/bin/sh\n")
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(NotABatchScript, match="too big"):
        read(tmp_path / "big.sh")
