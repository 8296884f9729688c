"""What this package reads out of scripts, and what the real `sbatch` makes of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from estimator import layout
from estimator.batch_script import NotABatchScript, parse
from testbed.cluster import Cluster
from testbed.users import User

LINES = [
    r"#SBATCH -J'my job' --comment=b\'c\=d # a remark",
    "#SBATCH --comment=a#b\n  # more\n\n#SBATCH -J later\necho\n#SBATCH -J never",
    "#SBATCH --comment='a#b c' -Jx",
    '#SBATCH --comment="it\'s" --job-name=y',
    "#SBATCH --comment\n#SBATCH two-lines",
    "#SBATCH --comm=short --job=z",
    "#SBATCH -Qvn2 -N1",
    "#SBATCH -N2 --ntasks-per-node=2",
    "#SBATCH -N2 -n3 --ntasks-per-node=2",
    "#SBATCH -N2 -n1",
    "#SBATCH -N1-2 --exclusive --nice -k --requeue",
    "#SBATCH --tasks-per-node=2 --comment=",
    "#SBATCH--comment=none",
    "# SBATCH --comment=no\n##SBATCH --comment=no\n #SBATCH --comment=no",
    "#SBATCH '' --comment=no",
    "#SBATCH --comment=one hetjob\n#SBATCH -D /tmp",
    "#SBATCH -G2 --comment=gpus",
    "#SBATCH --gres=gpu:2 --comment=gres",
    "#SBATCH -n2 --gpus-per-task=1 --comment=per-task",
    "#SBATCH --nice 5",
    "#SBATCH --job-name = x",
    "#SBATCH --comment='open",
    "#SBATCH --ntasks",
    "#SBATCH : -n 2",
    "#SBATCH --nodes=%%NODES%% --comment=template",
    "#SBATCH -n <N> --comment=template",
    "#SBATCH -N 1k-2k",
    "#SBATCH -n 1.5",
    "#SBATCH -n 0",
    "#SBATCH -c two",
    "#SBATCH --ntasks-per-node=$N",
    "#SBATCH --nodes='2 '",
]


def theirs(job: str) -> dict[str, str]:
    """What `scontrol show job` says of it; values may have spaces in them."""
    return {
        name: match[1] if (match := re.search(rf"\b{pattern}$", job, re.MULTILINE)) else ""
        for name, pattern in (
            ("name", "JobName=(.*?) ?"),
            ("comment", "Comment=(.*?) ?"),
            ("chdir", "WorkDir=(.*)"),
            ("nodes", r"NumNodes=(\d+).*"),
            ("tasks", r"NumTasks=(\d+).*"),
        )
    }


def ours(script: str, home: Path) -> dict[str, str]:
    read = parse(Path("job.sh"), script)
    laid_out = layout.of_script(read)
    return {
        "name": read.options.get("job-name", ""),
        "comment": read.options.get("comment", ""),
        "chdir": str(read.chdir or home),
        "nodes": str(laid_out.nodes),
        "tasks": str(laid_out.tasks),
    }


def test_sbatch_reads_the_same(cluster: Cluster, alice: User) -> None:
    different = {}
    for lines in LINES:
        script = f"#!/bin/sh\n{lines}\n"
        done = cluster.try_sbatch(script, user=alice, args=["--hold"])
        try:
            read = ours(script, alice.home)
        except NotABatchScript as error:
            if done.returncode == 0:
                different[lines] = (str(error), "was accepted")
            continue
        if done.returncode != 0:
            different[lines] = (str(read), done.stderr)
            continue
        job_id = int(done.stdout.split(";")[0])
        told = theirs(cluster.scontrol("show", "job", str(job_id)))
        cluster.scancel(job_id)
        if not read["name"]:
            read["name"] = told["name"]
        if read != told:
            different[lines] = (str(read), str(told))
    assert not different, different


@pytest.mark.parametrize(
    ("environment", "arguments"),
    [
        ({}, []),
        ({"SBATCH_JOB_NAME": "of-env"}, []),
        ({"SBATCH_JOB_NAME": "of-env"}, ["-J", "of-line", "-n2"]),
    ],
)
def test_what_beats_what(
    cluster: Cluster, alice: User, environment: dict[str, str], arguments: list[str]
) -> None:
    script = "#!/bin/sh\n#SBATCH -J of-script -n3\n"
    read = parse(Path("job.sh"), script).with_options(arguments, environment)
    job_id = cluster.sbatch(script, user=alice, args=["--hold", *arguments], env=environment)
    told = cluster.job(job_id)
    cluster.scancel(job_id)
    assert (read.options["job-name"], read.options["ntasks"]) == (told["JobName"], told["NumTasks"])
