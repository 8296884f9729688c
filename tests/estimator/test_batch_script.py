"""What `sbatch` would read out of a script."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        ("#SBATCH--mem=4G", {"mem": "4G"}),
        ("#SLURM --mem=4G", {"mem": "4G"}),
        (" #SBATCH --mem=4G", {}),
        (
            "#SBATCH -Hvp gpu --requeue -k --nice=5",
            {"hold": "", "verbose": "", "partition": "gpu", "requeue": "", "no-kill": "", "nice": "5"},
        ),
        (r"#SBATCH --comment=a\ b\"c -J'x\'y'", {"comment": 'a b"c', "job-name": "x'y"}),
        ("#SBATCH --comment=a#b -n 4", {"comment": "a"}),
        ("#SBATCH --comment='a#b' -n 4", {"comment": "a#b", "ntasks": "4"}),
        ("#SBATCH --part=gpu --tasks=4", {"partition": "gpu", "ntasks-per-node": "4"}),
        ("#SBATCH --tasks-per-node=4 --of-a-plugin=x", {"ntasks-per-node": "4", "of-a-plugin": "x"}),
        ("#SBATCH --of-a-plugin x --mem 4G", {"of-a-plugin": "x", "mem": "4G"}),
        ("#SBATCH '' --mem=4G", {}),
        ("#SBATCH --gres\n#SBATCH gpu:2", {"gres": "gpu:2"}),
    ],
)
def test_an_option_line(line: str, expected: dict[str, str]) -> None:
    assert options(line) == expected


@pytest.mark.parametrize(
    "line",
    ["--comment='unclosed", "gpu:1", "--job-name = x", "--exclusive user", "--mem", "--", "-J x : -n 1"],
)
def test_options_that_sbatch_refuses(line: str) -> None:
    with pytest.raises(NotABatchScript, match="sbatch refuses"):
        options(f"#SBATCH {line}")


@given(
    st.dictionaries(
        st.sampled_from(["comment", "job-name", "mem", "gres"]), st.text("ab #\\\"' =", min_size=1)
    )
)
def test_a_quoted_value_is_read_back(wanted: dict[str, str]) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    assert (
        options("#SBATCH " + " ".join(f"--{name}={quoted(text)}" for name, text in wanted.items())) == wanted
    )


@given(
    st.lists(
        st.sampled_from(["-N2", "--nodes=3", "-N 4", "-G1", "--gpus 2", "--exclusive", "-H"]), max_size=6
    )
)
def test_how_options_are_spread_over_lines_does_not_matter(words: list[str]) -> None:
    assert options(*(f"#SBATCH {word}" for word in words)) == options("#SBATCH " + " ".join(words))


@given(st.text(max_size=80))
def test_any_line_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(NotABatchScript):
        parse(SCRIPT, f"#!/bin/sh\n#SBATCH {text}")


def test_components_of_a_heterogeneous_job() -> None:
    script = parse(
        SCRIPT,
        "#!/bin/sh\n#SBATCH -A physics -n 1 --mem=4G -c2\n#SBATCH hetjob\n#SBATCH --gres=gpu:4 -N2\n"
        "#SBATCH PackJob --ignored\n#SBATCH -A arts\n",
    )
    assert script.options == {"account": "physics", "ntasks": "1", "mem": "4G", "cpus-per-task": "2"}
    assert script.others == (
        {"account": "physics", "mem": "4G", "gres": "gpu:4", "nodes": "2"},
        {"account": "arts", "mem": "4G"},
    )
    assert script.gpus is None


def test_what_overrides_the_script() -> None:
    script = parse(SCRIPT, "#!/bin/sh\n#SBATCH -p a -N1 --gres=gpu:1 -J x\n")
    environment = {"SBATCH_PARTITION": "b", "SBATCH_GPUS": "4", "SBATCH_ARRAY_INX": "0-3", "HOME": "/"}
    script = script.with_options(["-N2", "--gpus=8"], environment)
    assert dict(script.options) == {
        "partition": "b", "nodes": "2", "gres": "gpu:1", "job-name": "x", "gpus": "8", "array": "0-3",
    }  # fmt: skip
    with pytest.raises(NotABatchScript, match="needs a value"):
        script.with_options(["-N"], {})


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
        ("--gres=gpu:2(S:0-1)", GpuRequest(2, "node")),
        ("--gres=gpu:a100:2(S:0,1),nvme", GpuRequest(2, "node", "a100")),
        ("--gres=gres/gpu=2", GpuRequest(2, "node")),
        ("--gres=GPU:a100", GpuRequest(1, "node", "a100")),
        ("--gres=gpu:a100:1,gpu:v100:2", GpuRequest(3, "node")),
        ("-G2", GpuRequest(2, "job")),
        ("--gpus=v100:2,a100:1", GpuRequest(3, "job")),
        ("--gpus-per-socket=2", GpuRequest(2, "socket")),
        ("--tres-per-node=gres/gpu:a100:2", GpuRequest(2, "node", "a100")),
        ("--tres-per-task=cpu:4,gres/gpu:1", GpuRequest(1, "task")),
        ("--tres-per-task=gres/gpu=1", GpuRequest(1, "task")),
        ("--tres-per-job=gres/gpu:8", GpuRequest(8, "job")),
        ("--gres=shard:4", None),
        ("--gres=none", None),
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
