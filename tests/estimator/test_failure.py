"""The one reason that a user is told, out of what interpreters and shells print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from estimator import failure
from estimator.sandbox import Outcome
from estimator.trace import Trace, UserError
from settings import Estimate

CWD = Path("/home/u/job")


def ended(end: Any = "exit", code: int | None = 0) -> Outcome:
    return Outcome(end, code, "", 1.0, 0)


def reason(outcome: Outcome, tail: str = "", traces: tuple[Trace, ...] = ()) -> str | None:
    return failure.of_run("train.sh", CWD, Estimate(), outcome, tail, traces)


def trace(**fields: Any) -> Trace:
    return Trace.model_validate({"format": 1, "pid": 7, "argv": ("/x/train.py",), "end": "script"} | fields)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import os\nopen('data/train.bin')\n", "train.py line 2: FileNotFoundError: data/train.bin"),
        ("x = 1\n\nif x\n", "train.py line 3: SyntaxError: expected ':'"),
        (
            "import json\ndef f():\n    json.loads('{')\nf()\n",
            "train.py line 3: JSONDecodeError: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)",
        ),
        (
            "try:\n    1/0\nexcept ZeroDivisionError:\n    raise KeyError('a')\n",
            "train.py line 4: KeyError: 'a'",
        ),
        ("raise RuntimeError\n", "train.py line 1: RuntimeError"),
        ("assert False, 'two\\nlines'\n", "train.py line 1: AssertionError: two"),
    ],
)
def test_a_traceback_in_the_output(tmp_path: Path, program: str, expected: str) -> None:
    (tmp_path / "train.py").write_text(program)
    done = subprocess.run(
        [sys.executable, tmp_path / "train.py"], stderr=subprocess.PIPE, text=True, check=False
    )
    error = failure.error_in("before\n" + done.stderr + "after\n")
    assert error is not None
    assert failure.told(error, tmp_path) == expected


@pytest.mark.parametrize(
    "output", ["", "epoch 1\nloss: 3\n", "error: no\n", '  File "a.py", line 3\nepoch 1 ends\n']
)
def test_output_without_a_traceback(output: str) -> None:
    assert failure.error_in(output) is None


def test_an_error_in_a_trace_comes_first() -> None:
    error = UserError(type="FileNotFoundError", message="[Errno 2] No such file or directory: 'a.bin'",
                      file="/home/u/job/src/train.py", line=40)  # fmt: skip
    failed = trace(end="exception", error=error)
    expected = "src/train.py line 40: FileNotFoundError: a.bin"
    assert reason(ended("timeout", None), "x", (failed,)) == expected
    assert reason(ended(), "x", (failed,)) == expected
    assert reason(ended(), "x", (trace(),)) is None


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "[Errno 30] Read-only file system: '/data/x'",
            "OSError: Read-only file system: '/data/x' (a dry run may write only into the job's folder, "
            "$HOME, $SCRATCH and /tmp)",
        ),
        (
            "[Errno -3] Temporary failure in name resolution",
            "OSError: Temporary failure in name resolution "
            "(a dry run has no network: let the job find it in a cache)",
        ),
        ("", "OSError"),
    ],
)
def test_what_the_dry_run_itself_forbids_is_said(message: str, expected: str) -> None:
    assert failure.told(UserError(type="OSError", message=message), CWD) == expected


@pytest.mark.parametrize(
    ("outcome", "tail", "expected"),
    [
        (ended("timeout", None), "", "train.sh did not reach optimizer step 3 within 100 s"),
        (
            ended("timeout", None),
            "a\nloading\n\n",
            "train.sh did not reach optimizer step 3 within 100 s; its last output was: loading",
        ),
        (
            ended("memory", None),
            "",
            "train.sh needs more than 8192 MiB of host memory in the dry run "
            "(estimate.memory_mib in gpumem.toml)",
        ),
        (ended("processes", None), "", "train.sh starts more than 512 processes"),
        (
            ended("output", None),
            "",
            "train.sh leaves traces of more than 2048 MiB or 10000 files, closes their folder, or fills the disk",
        ),
        (ended("signal", 11), "boom", "train.sh was ended by SIGSEGV: boom"),
        (ended("signal", 24), "", "train.sh used more than 400 s of CPU time"),
        (ended("exit", 139), "", "a program of train.sh was ended by SIGSEGV"),
        (ended("exit", 3), "a\nbad option\n", "train.sh ended with exit code 3: bad option"),
        (
            ended("exit", 127),
            "train.sh: line 4: conda: command not found\nbye\n",
            "train.sh ended with exit code 127: train.sh: line 4: conda: command not found",
        ),
        (ended("not_started", None), "No such file", "train.sh cannot be started: No such file"),
        (
            ended("not_started", None),
            "[Errno 2] No such file or directory: b'/no/shell'",
            "train.sh cannot be started: /no/shell: No such file or directory",
        ),
        (
            ended("not_started", None),
            "[Errno 13] Permission denied: b'/usr/games/train.sh'",
            "train.sh cannot be started: Permission denied",
        ),
        (ended(), "all well", None),
    ],
)
def test_how_the_run_ended(outcome: Outcome, tail: str, expected: str | None) -> None:
    assert reason(outcome, tail) == expected


def test_software_that_could_not_have_used_the_gpu_explains_every_end() -> None:
    def why(*traces: Trace) -> str | None:
        return failure.of_run("train.sh", CWD, Estimate(), ended("timeout", None), "", traces)

    jax = trace(reason="this program uses JAX, not PyTorch")
    cpu = trace(torch_version="2.13.0+cpu", reason="this PyTorch (/v/torch) is built without CUDA")
    assert why(trace(), jax) == "train.py: this program uses JAX, not PyTorch"
    assert why(jax, cpu) == "train.py: this PyTorch (/v/torch) is built without CUDA"
    said = why(jax, trace(torch_version="2.14.1", cuda_version="13.0"))
    assert said is not None and "within" in said


def test_nothing_to_estimate_although_the_script_ended_well(tmp_path: Path) -> None:
    def absent(tail: str = "", *traces: Trace, script: Path | None = None) -> str:
        return failure.of_absence("train.sh", CWD, script, tail, traces)

    complaint = "python: can't open file '/home/u/job/trian.py': [Errno 2] No such file or directory"
    assert absent(f"{complaint}\ndone\n", trace()) == f"train.sh: {complaint}"
    assert absent("", trace()) == "train.sh does not run PyTorch: none of its Python programs imports it"
    with_torch = trace(torch_version="2.6.0", reason="this torch is built without CUDA")
    assert absent("", trace(), with_torch) == "train.py: this torch is built without CUDA"
    assert absent() == "train.sh does not run PyTorch: it started no Python program"
    script = tmp_path / "train.sh"
    script.write_text("# no singularity here\npython train.py\n")
    assert absent(script=script) == absent()
    script.write_text("srun apptainer exec --nv torch.sif python train.py\n")
    assert absent(script=script).endswith("could be traced: what apptainer runs in a container is not")


def test_what_the_hub_would_have_given_is_named(tmp_path: Path) -> None:
    error = UserError(type="OSError", message="We couldn't connect", file=None, line=None, hub="org/model")
    ending = "is not in the Hugging Face cache of this user, and a dry run has no network: load it once on the login node"
    assert failure.told(error, tmp_path) == f"OSError: org/model {ending}"
    error = UserError(
        type="ConnectionError", message="Couldn't reach 'a/b' on the Hub (OfflineModeIsEnabled)"
    )
    assert failure.told(error, tmp_path) == f"ConnectionError: a/b {ending}"


def test_a_missing_pytorch_comes_with_what_to_do() -> None:
    told = failure.told(UserError(type="ModuleNotFoundError", message="No module named 'torch'"), CWD)
    assert told == (
        "ModuleNotFoundError: No module named 'torch' "
        "(activate the environment that the job runs in: in the script, or before it is submitted)"
    )
