"""When a pass over a loader, and a program, has shown enough: tables of what happens, and what follows."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def tracer():
    import importlib

    return SimpleNamespace(**{
        name: importlib.import_module(f"_gpumem_tracer.{name}") for name in ("life", "callers")
    })  # fmt: skip


class Program:
    """A program that a life is told of; its loaders hold `held` bytes more with each batch."""

    def __init__(self, tracer, steps=3):
        self.ends = []
        self.life = tracer.life.Life(steps, self.ends.append)
        self.allocated = 1000

    def step(self, optimizer):
        self.life.backwards += 1
        self.life.took_step(optimizer)
        self.life.may_end()

    def walk(self, length, each, kept=0):
        """Runs `each(batch)` over a loader of so many batches; returns the pass."""
        this = self.life.begins(length)
        for batch in range(length):
            if self.life.wants_to_end(this, self.allocated):
                self.life.ends(this, cut=True)
                return this
            self.life.got(this, 8, ((8, 3),))
            each(batch)
            self.allocated += kept
            if self.ends:
                return this
        self.life.ends(this, cut=False)
        return this


@pytest.fixture
def program(tracer):
    return Program(tracer)


def evaluate(program):
    return lambda batch: program.life.inferred(lambda: 0)


def test_two_epochs_with_an_evaluation_between_are_walked(program):
    optimizer = object()
    program.life.knows(optimizer)
    kinds = []
    for _ in range(100):
        kinds.append(program.walk(1000, lambda batch: program.step(optimizer)).kind)
        if program.ends:
            break
        kinds.append(program.walk(1000, evaluate(program)).kind)
    assert kinds == ["training", "evaluation", "training"]
    assert [one["kind"] for one in program.life.told()] == kinds
    assert program.ends == ["steps"]
    assert program.life.steps() == 6


def test_a_program_that_will_evaluate_later_is_walked_further(tracer):
    program = Program(tracer)
    program.life._evaluates_later = lambda: True
    optimizer = object()
    program.life.knows(optimizer)
    for epoch in range(1, 100):
        program.walk(1000, lambda batch: program.step(optimizer))
        if epoch % 5 == 0:
            program.walk(1000, evaluate(program))
        if program.ends:
            break
    assert epoch == 6


def test_passes_are_cut_after_as_many_batches_as_steps_are_wanted(program):
    optimizer = object()
    program.life.knows(optimizer)
    assert program.walk(1000, lambda batch: program.step(optimizer)).batches == 3
    evaluation = program.walk(1000, evaluate(program))
    assert (evaluation.batches, evaluation.cut, evaluation.left_out()) == (3, True, 997)


def test_a_pass_that_is_shorter_ends_by_itself(program):
    evaluation = program.walk(2, evaluate(program))
    assert (evaluation.batches, evaluation.cut, evaluation.left_out()) == (2, False, 0)


def test_gradients_may_be_accumulated_over_many_batches(program):
    optimizer = object()
    program.life.knows(optimizer)

    def train(batch):
        program.life.backwards += 1
        if batch % 32 == 31:
            program.life.took_step(optimizer)
            program.life.may_end()

    assert program.walk(1000, train).batches == 96


def test_batches_may_be_fetched_long_before_they_are_used(program):
    this = program.walk(1000, lambda batch: None)
    assert (this.kind, this.batches) == ("other", 256)


def test_a_second_optimizer_that_steps_less_often_is_waited_for(program):
    critic, generator = object(), object()
    program.life.knows(critic)
    program.life.knows(generator)

    def train(batch):
        program.step(critic)
        if batch % 3 == 2:
            program.step(generator)

    assert program.walk(1000, train).batches == 9


def test_an_optimizer_that_never_steps_is_not_waited_for_without_end(program):
    optimizer = object()
    program.life.knows(optimizer)
    program.life.knows(object())
    assert program.walk(1000, lambda batch: program.step(optimizer)).batches == 12


def test_without_a_loader_the_steps_end_the_program(program):
    optimizer = object()
    program.life.knows(optimizer)
    for step in range(3):
        assert program.ends == [], step
        program.step(optimizer)
    assert program.ends == ["steps"]


def test_a_loop_on_one_batch_of_a_loader_ends(program):
    optimizer = object()
    program.life.knows(optimizer)
    this = program.life.begins(1000)
    program.life.got(this, 8, ())
    while not program.ends and program.life.steps() < 1000:
        program.step(optimizer)
    assert program.life.steps() == 32


def test_memory_that_each_batch_keeps_is_noticed(program):
    evaluation = program.walk(1000, evaluate(program), kept=50)
    assert (evaluation.batches, evaluation.grows_by) == (8, 50)


def test_memory_that_grows_at_first_is_not(program):
    program.life.knows(object())
    this = program.life.begins(1000)
    for allocated in (0, 100, 200, 250, 250, 250):
        if program.life.wants_to_end(this, allocated):
            break
        program.life.got(this, 8, ())
        program.life.inferred(lambda: 0)
    assert (this.batches, this.grows_by) == (4, 0)


def test_a_program_that_only_infers_ends_when_nothing_new_comes(program):
    for calls in range(1, 5000):
        program.life.inferred(lambda calls=calls: min(calls, 200))
        if program.ends:
            break
    assert (program.ends, calls) == (["steady"], 800)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ("tensor", 4),
        (["tensor", "other"], 4),
        ({"input_ids": "tensor"}, 4),
        ((["other", "tensor", "other"], ["tensor"] * 3), 3),
        (5, None),
    ],
)
def test_the_size_of_a_batch(tracer, batch, samples):
    tensors = {
        "tensor": SimpleNamespace(shape=(4, 7), dtype="float"),
        "other": SimpleNamespace(shape=(2, 9), dtype="float"),
    }

    def made(thing):
        if isinstance(thing, dict):
            return {key: made(value) for key, value in thing.items()}
        if isinstance(thing, (list, tuple)):
            return type(thing)(made(value) for value in thing)
        return tensors.get(thing, thing)

    assert tracer.life.describe(made(batch))[0] == samples


LOOPS = {
    "for x in it: pass": True,
    "[x for x in it]": True,
    "list(it)": True,
    "for i, x in enumerate(it): pass": True,
    "for x, y in zip(it, it): pass": True,
    "def g():\n    yield from it\nfor x in g(): pass": True,
    "next(it, None)": True,
    "try:\n    next(it)\nexcept StopIteration:\n    pass": True,
    "while True:\n    try:\n        x = next(it)\n    except (StopIteration, ValueError):\n        break": True,
    "next(it)": False,
    "try:\n    next(it)\nexcept ValueError:\n    pass": False,
    "x = [next(it) for _ in range(2)]": False,
    "it.__next__()": False,
}


@pytest.mark.parametrize("source", LOOPS)
def test_only_code_that_expects_an_end_is_told_of_one(tracer, source, tmp_path):
    asked = []

    class Iterator:
        def __iter__(self):
            return self

        def __next__(self):
            import sys

            asked.append(tracer.callers.expects_an_end(sys._getframe(1)))
            if len(asked) > 3:
                raise StopIteration
            return len(asked)

    script = tmp_path / "script.py"
    script.write_text(source)
    exec(compile(source, script, "exec"), {"it": Iterator()})
    assert set(asked) == {LOOPS[source]}


@pytest.mark.parametrize(
    ("left", "evaluated_at", "steps"),
    [
        (100, 103, 104),  # the evaluation after the loop, and a step more
        (100, None, 104),  # there is none after all
        (1000, 1003, 3),  # too far to go
        (0, 103, 3),  # nobody knows how long the loop is
    ],
)
def test_a_loop_without_a_loader_is_walked_to_its_end_if_an_evaluation_follows(
    tracer, left, evaluated_at, steps
):
    program = Program(tracer)
    program.life._evaluates_later = lambda: True
    program.life._steps_left = lambda steps: left
    optimizer = object()
    program.life.knows(optimizer)
    while not program.ends and program.life.steps() < 2000:
        program.step(optimizer)
        if program.life.steps() == evaluated_at:
            program.life.inferred(lambda: 0)
    assert program.life.steps() == steps


NESTED = """
from loops import rounds_left
found = {}
class Options: steps = 10
def step(name): found[name] = rounds_left()
def main(options, epochs=2):
    for epoch in range(epochs):
        for i in range(1, options.steps + 1):
            step("nested")
            break
    for i in range(5): step("last")
    for i in iter(range(3)): step("unknown")
    while "while" not in found: step("while")
    for i in tqdm(range(0, 10, 2)): break
    step("outside")
def tqdm(one): return one
main(Options())
"""


def test_the_rounds_that_are_left_of_a_loop_are_read_from_its_source(tracer, tmp_path):
    import importlib

    loops = importlib.import_module("_gpumem_tracer.loops")
    script = tmp_path / "script.py"
    script.write_text(NESTED.replace("from loops import rounds_left\n", ""))
    names = {"rounds_left": loops.rounds_left}
    exec(compile(script.read_text(), str(script), "exec"), names)
    assert names["found"] == {
        "nested": [9, 9], "last": [0], "unknown": [], "while": [], "outside": []
    }  # fmt: skip


def test_steps_that_repeat_those_before_are_left_out_of_the_history(tracer):
    import importlib

    repeats = importlib.import_module("_gpumem_tracer.repeats")
    step, other, third = ([(action, address, 512) for action in range(3)] for address in (7, 8, 9))
    history = [(0, 1, 64), *step * 5, *(other + third) * 4, *step, (1, 1, 64)]
    columns = {
        name: [event[number] for event in history]
        for number, name in enumerate(("action", "address", "size"))
    }
    columns["stream"] = [0] * len(history)

    def kept(ranges):
        left = repeats.without(columns, ranges)
        return list(zip(*(left[name] for name in ("action", "address", "size")), strict=True))

    ends = [1 + 3 * number for number in range(15)]
    ranges = repeats.left_out(columns, ends)
    assert kept(ranges) == [(0, 1, 64), *step * 2, *(other + third) * 4, *step, (1, 1, 64)]
    assert [repeats.moved(at, ranges) for at in (0, 6, 7, 9, 16, 17, 42)] == [0, 6, 7, 7, 7, 8, 33]
    ranges = repeats.left_out(columns, ends[5:])
    assert kept(ranges) == [(0, 1, 64), *step * 5, *(other + third) * 2, *step, (1, 1, 64)]
