"""What a program may still come to: which of its lines, by its source and its call stack."""

import sys
from pathlib import Path

import pytest

from estimator.tracer.ahead import ahead

PROGRAM = """
class Trainer:
    def validate(self): return "method"

def evaluate(): return "called later"
def helper(): return "named by it"
def export(): return helper()
def other(): return "another choice"

def train(epochs):
    before = "first"
    for epoch in range(epochs):
        try:
            if epoch:
                STOP
            else:
                print("branch of the loop")
        finally:
            print("cleaning")
        evaluate()
    export()

def main():
    if CHOICE:
        RUN(train)
    else:
        other()
    print("end")

main()
"""


@pytest.fixture
def is_ahead(tmp_path: Path):
    """Which texts of the program's lines are ahead when it stops."""

    def run(program: str) -> set[str]:
        file = tmp_path / "train.py"
        file.write_text(program)
        found = []

        def stop() -> None:
            found.extend(ahead(sys._getframe(1), [str(file)]))
            raise SystemExit

        code = compile(program, str(file), "exec")
        with pytest.raises(SystemExit):
            exec(code, {"stop": stop, "library": through_library})
        lines = program.splitlines()
        return {
            line.split('"')[1] for _, first, last in found for line in lines[first - 1 : last] if '"' in line
        }

    return run


def through_library(function):
    """As a package would call it, that is neither the standard library nor the user's."""
    names: dict = {}
    exec(compile("def call(f): f(2)", "/site-packages/lib.py", "exec"), names)
    names["call"](function)


LOOP = {"branch of the loop", "cleaning"}
LATER = {"called later", "named by it", "end"}


def test_loops_around_and_what_follows_with_all_that_they_call(is_ahead) -> None:
    program = PROGRAM.replace("CHOICE", "True").replace("STOP", "stop()").replace("RUN(train)", "train(2)")
    assert is_ahead(program) == LOOP | LATER


def test_a_branch_that_was_not_taken_and_what_is_over_are_not(is_ahead) -> None:
    program = PROGRAM.replace("CHOICE", "True").replace("STOP", "pass").replace("RUN(train)", "train(2)")
    program = program.replace("    export()", "    stop()")
    assert is_ahead(program) == {"end"}


def test_a_library_may_call_methods(is_ahead) -> None:
    program = PROGRAM.replace("CHOICE", "True").replace("STOP", "stop()").replace("RUN", "library")
    assert is_ahead(program) == LOOP | LATER | {"method"}


def test_all_is_where_the_stack_is_not_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "other.py"
    file.write_text("def f(): pass\n")
    assert ahead(sys._getframe(), [str(file)]) == [(str(file), 1, sys.maxsize)]
