"""Data that was never brought, as the reason why a program fails."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from estimator import containers, staging
from tests.estimator.callers import Caller

CWD = Path("/home/u")


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("rsync -a data.host:/sets/coco /tmp/x/", "/tmp/x/coco/labels.json"),
        ("scp -r host:/sets/coco .", "coco/labels.json"),
        ("wget -q https://host/coco.tar.gz", "/home/u/coco/labels.json"),
        ("curl -o sets/coco.bin https://host/v1", "/home/u/sets/coco.bin"),
        ("aws s3 sync s3://bucket/coco coco-copy", "coco-copy/a.json"),
    ],
)
def test_a_command_that_would_have_brought_it(command: str, missing: str) -> None:
    reason = f"train.py line 3: FileNotFoundError: {missing}"
    told = staging.explain(reason, [tuple(command.split())], "", CWD)
    assert told == f" (`{command}` would have brought it: a dry run copies nothing from elsewhere)"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("rsync -a host:/sets/coco .", "train.py line 3: FileNotFoundError: model.json"),
        ("wget https://host/coco.zip", "train.py line 3: FileNotFoundError: /home/u/other.zip"),
        ("rsync -a host:/sets/coco /tmp/x", "train.py line 3: ValueError: /tmp/x/coco"),
    ],
)
def test_what_has_nothing_to_do_with_it(command: str, reason: str) -> None:
    assert staging.explain(reason, [tuple(command.split())], "", CWD) == ""


def test_a_copy_that_failed() -> None:
    reason = "train.py line 3: FileNotFoundError: /tmp/a.bin"
    complaint = "cp: cannot stat '/sets/a.bin': No such file or directory"
    assert (
        staging.explain(reason, [], f"hello\n{complaint}\nTraceback\n", CWD) == f"; before that, {complaint}"
    )


def test_credentials_are_not_told() -> None:
    command = ("wget", "--header=Authorization: Bearer abc.DEF", "https://host/coco.zip")
    told = staging.explain("x: No such file or directory: 'coco/a'", [command], "", CWD)
    assert "coco.zip" in told and "abc.DEF" not in told


def test_from_a_script_to_its_reason(ordinary: Caller) -> None:
    script = (
        f"#!/bin/bash\nmkdir -p $SLURM_TMPDIR/d $TMPDIR/e\nrsync -a --info=progress2 host:/sets/x $SLURM_TMPDIR/d\n"
        f"rsync -a local $SLURM_TMPDIR/d\n"
        f"{sys.executable} train.py $SLURM_TMPDIR/d\n"
    )
    ordinary.file("job.sh", script)
    ordinary.file("local/here.txt", "here")
    ordinary.file(
        "train.py",
        "import sys, pathlib\nplace = pathlib.Path(sys.argv[1])\n"
        "assert (place / 'local/here.txt').read_text() == 'here'\nopen(place / 'x/train.bin')\n",
    )
    done = ordinary.gpumem("estimate", "--gpu", "a100-80gb", "job.sh", TMPDIR="/localscratch/4711")
    assert done.returncode == 1
    assert done.stderr == (
        "gpumem: train.py line 4: FileNotFoundError: /tmp/d/x/train.bin (`rsync -a --info=progress2 host:/sets/x "
        "/tmp/d` would have brought it: a dry run copies nothing from elsewhere)\n"
    )


def test_a_container_is_the_reason(ordinary: Caller) -> None:
    command = "singularity exec --nv image.sif python train.py"
    ordinary.file("job.sh", f"#!/bin/bash\nset -e\n{command}\n")
    done = ordinary.gpumem("estimate", "--gpu", "a100-80gb", "job.sh")
    assert (done.returncode, done.stderr) == (1, f"gpumem: job.sh: `{command}` {containers.NOT_INSTALLED}\n")


def test_packages_that_a_job_would_install_are_told(ordinary: Caller) -> None:
    ordinary.file(
        "job.sh",
        f"#!/bin/bash\n{sys.executable} -m pip install nothing-of-this-name\n{sys.executable} train.py\n",
    )
    ordinary.file("train.py", "import nothing_of_this_name\n")
    done = ordinary.gpumem("estimate", "--gpu", "a100-80gb", "job.sh")
    assert "train.py line 1: ModuleNotFoundError" in done.stderr
    assert (
        "(`pip install nothing-of-this-name` was skipped: a dry run installs only with --no-index"
        in done.stderr
    )


def test_what_lies_here_is_installed_and_vanishes(ordinary: Caller) -> None:
    with zipfile.ZipFile(ordinary.file("tiny-1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("tiny.py", "NAME = 'tiny'\n")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(
            "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\n")
    pip = f"{sys.executable} -m pip install --no-index --target $PWD/site *.whl"
    ordinary.file("job.sh", f"#!/bin/bash\n{pip}\nPYTHONPATH=$PWD/site {sys.executable} train.py\n")
    ordinary.file("train.py", "import tiny\nraise ValueError(tiny.NAME)\n")
    done = ordinary.gpumem("estimate", "--gpu", "a100-80gb", "job.sh")
    assert done.stderr == "gpumem: train.py line 2: ValueError: tiny\n"
    assert not (ordinary.work / "site").exists()
