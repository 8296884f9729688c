"""Finds differences, and makes them short."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from estimator.allocator import AllocatorConfig
from tests.estimator.fuzz.commands import Command, Session
from tests.estimator.fuzz.simulated import OBSERVED, Simulated

Run = Callable[[Session], tuple[list[list], str | None]]


@dataclass(frozen=True)
class Difference:
    """Where the two part."""

    session: Session
    at: int
    texts: tuple[str, ...]

    def __str__(self) -> str:
        header = f"settings {self.session.conf_text() or '(none)'}, {self.session.capacity >> 20} MiB, seed {self.session.seed}"
        commands = [f"  {' '.join(map(str, command))}" for command in self.session.commands[: self.at + 1]]
        return "\n".join([header, *commands, *self.texts])


def simulate(session: Session, config: AllocatorConfig) -> Iterator[list]:
    """What the simulator answers and shows after each command.

    It stops before the first command after which torch would be in no state that it defines.
    """
    simulated = Simulated(session, config)
    for command in session.commands:
        try:
            shown = [simulated.do(*command), *simulated.observe()]
        except Exception as failure:
            yield [f"the simulator failed: {failure!r}"]
            return
        if simulated.allocator.is_undefined:
            return
        yield shown


def compare(session: Session, config: AllocatorConfig, real: Run) -> Difference | None:
    """The first difference between torch and the simulator, if there is one."""
    ours = list(simulate(session, config))
    theirs, error = real(session.with_commands(session.commands[: len(ours)]))
    return difference(session, ours, theirs, error)


def difference(
    session: Session, ours: Iterable[list], theirs: list[list], error: str | None
) -> Difference | None:
    """The same for what both have answered already."""
    for at, our in enumerate(ours):
        if at >= len(theirs):
            return Difference(session, at, (f"torch failed: {(error or '').strip()[-1500:]}",))
        if our != theirs[at]:
            texts = [
                f"{name}: torch {one!s:.300}, simulator {other!s:.300}"
                for name, one, other in zip(OBSERVED, theirs[at], our, strict=False)
                if one != other
            ]
            return Difference(session, at, tuple(texts))
    return None


def shrink(found: Difference, config: AllocatorConfig, real: Run, seconds: float = 20) -> Difference:
    """A difference with fewer commands: halves, quarters, ... are left out as long as one remains."""
    best = found
    commands: list[Command] = found.session.commands[: found.at + 1]
    size = max(len(commands) // 2, 1)
    deadline = time.monotonic() + seconds
    while size and time.monotonic() < deadline:
        begin = 0
        while begin < len(commands) and time.monotonic() < deadline:
            fewer = commands[:begin] + commands[begin + size :]
            shorter = compare(found.session.with_commands(fewer), config, real) if _sound(fewer) else None
            if shorter is not None and not any("torch failed" in text for text in shorter.texts):
                best, commands = shorter, fewer[: shorter.at + 1]
            else:
                begin += size
        size //= 2
    return best


def _sound(commands: list[Command]) -> bool:
    """Whether pools are begun, ended and released in an order that torch allows."""
    underway: list[int] = []
    uses: list[int] = []
    for what, *values in commands:
        if what == "empty_cache" and underway:
            return False  # old versions do not survive that
        if what == "begin":
            if underway:
                return False
            underway.append(values[0])
            uses.append(values[0])
        elif what == "end":
            if values[0] not in underway:
                return False
            underway.remove(values[0])
        elif what == "release_pool":
            if values[0] not in uses or values[0] in underway:
                return False
            uses.remove(values[0])
    return True
