"""However a Python is started in a dry run, our code runs in it first, and only once."""

from __future__ import annotations

import os
import shlex
import sys
import zipapp
from pathlib import Path

import pytest

from estimator import starter
from tests.estimator.callers import Caller

# Notes a start; `configuration` is the folder for that.
CODE = """
import os, sys
with open(os.path.join(configuration, str(os.getpid())), "a") as file:
    file.write("started\\n")
sys.gpumem_was_here = True
"""
PROGRAM = "import sys; sys.exit(not hasattr(sys, 'gpumem_was_here'))\n"
PYTHON = os.path.realpath(sys.executable)


@pytest.fixture
def started(ordinary: Caller, open_folder: Path) -> Caller:
    caller = ordinary
    code = open_folder / "code.py"
    code.write_text(CODE)
    caller.preload = starter.write(open_folder / "start", caller.out, code)
    caller.file("program.py", PROGRAM)
    caller.file("module/__main__.py", PROGRAM)
    zipapp.create_archive(caller.work / "module", caller.work / "program.pyz")
    return caller


def starts(caller: Caller) -> list[str]:
    return [path.read_text() for path in caller.out.iterdir()]


WAYS = [
    "python program.py",
    "python -I program.py",
    "python -S program.py",
    "python -IS program.py",
    "python -E program.py",
    "python -m module",
    "python -Sc 'import sys; sys.exit(not hasattr(sys, \"gpumem_was_here\"))'",
    "python < program.py",
    "python program.pyz",
    "env -i $(which python) program.py",
    "LD_PRELOAD= PYTHONPATH=/nowhere python program.py",
    "LD_PRELOAD=libm.so.6 python program.py",
    "(echo '#!/usr/bin/env python'; cat program.py) > s; chmod +x s; ./s",
    'python -c \'import os, sys; os.execve(sys.executable, ["python", "-I", "program.py"], {})\'',
]


def test_every_way_to_start_python(started: Caller) -> None:
    tries = "\n".join(f"({way}) || echo {shlex.quote(way)}" for way in WAYS)
    outcome = started.contain(f"PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH\n{tries}")
    assert (outcome["code"], outcome["tail"], outcome["notes"]) == (0, "", [])
    assert len(starts(started)) == len(WAYS)


def test_once_in_each_process_and_not_in_a_forked_one(started: Caller) -> None:
    outcome = started.contain(
        f"{PYTHON} -c 'import os; os.fork() and os.wait()' && {PYTHON} program.py && {PYTHON} -S program.py"
    )
    assert (outcome["code"], outcome["tail"]) == (0, "")
    assert starts(started) == ["started\n"] * 3


def test_their_own_sitecustomize_and_usercustomize_run_after_it(started: Caller) -> None:
    text = "import sys; print(__name__, hasattr(sys, 'gpumem_was_here'))\n"
    started.file("own/sitecustomize.py", text)
    started.file("own/usercustomize.py", text)
    outcome = started.contain("PYTHONPATH=own /usr/bin/python3 program.py")
    assert outcome["tail"].splitlines() == ["sitecustomize True", "usercustomize True"]


def test_code_that_fails_leaves_the_program_alone(started: Caller, open_folder: Path) -> None:
    (open_folder / "code.py").write_text("1 / 0\n")
    outcome = started.contain(f"{PYTHON} -c 'print(6 * 7)'")
    assert outcome["code"] == 0
    assert "ZeroDivisionError" in outcome["tail"] and outcome["tail"].endswith("42\n")


def test_what_else_is_in_etc_stays(started: Caller) -> None:
    outcome = started.contain("cat /etc/passwd; echo x > /etc/x")
    assert Path("/etc/passwd").read_text() in outcome["tail"]
    assert "Read-only file system" in outcome["tail"]
