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
