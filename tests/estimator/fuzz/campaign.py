"""Many sessions over all settings that a version of torch knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from estimator import alloc_conf
from estimator.allocator import AllocatorConfig
from tests.estimator.fuzz.commands import SETTINGS, Session, as_text, random_session
from tests.estimator.fuzz.compare import Difference, difference, simulate
from tests.estimator.fuzz.oracle import Oracle

# torch keeps these from one text to the next
LASTING = {"expandable_segments": "False", "large_segment_size_mb": "20", "max_non_split_rounding_mb": "21"}


class Campaign:
    """The sessions for one version of torch; the same for the same seed."""

    def __init__(self, torch_version: str, seed: str = "0", length: int = 1000, only: str = "") -> None:
        self.version = alloc_conf.version_of(torch_version)
        self.seed = seed
        self.length = length
        self.ooms = 0
        self._reset = {name: value for name, value in LASTING.items() if self._knows({name: value})}
        if self.version >= (2, 10):
            del self._reset["max_non_split_rounding_mb"]  # forgotten with each text
        self._settings = {
            name: [conf for conf in confs if self._knows(conf) and not self._fails(conf)]
            for name, confs in SETTINGS.items()
            if not only or name == only
        }

    def _knows(self, conf: dict[str, str]) -> bool:
        try:
            alloc_conf.parse(as_text(conf), self.version)
        except alloc_conf.AllocConfError:
            return False
        return True

    def _fails(self, conf: dict[str, str]) -> bool:
        """An internal assertion of old versions: they would release a part of an expandable segment."""
        return self.version < (2, 6) and {"expandable_segments", "max_split_size_mb"} <= set(conf)

    def sessions(self, commands: int) -> Iterator[tuple[str, Session]]:
        """Sessions of about so many commands in all, with the name of their settings."""
        number = 0
        while commands > 0:
            for name, confs in self._settings.items():
                if not confs or commands <= 0:
                    continue
                conf = confs[number % len(confs)]
                session = random_session(
                    f"{self.seed}-{name}-{number}", conf, self._reset, self.length, self.version
                )
                commands -= len(session.commands)
                yield name, session
            number += 1

    def config(self, session: Session) -> AllocatorConfig:
        """What the simulator is given for it: the fraction was set to 1.0 once."""
        reset = {name: value for name, value in self._reset.items() if name not in session.conf}
        conf = as_text(reset | session.conf)
        return replace(alloc_conf.parse(conf, self.version).config, memory_fraction=1.0)

    def simulate(self, session: Session) -> tuple[Session, list[list]]:
        """A session up to where torch's own state is sound, and what the simulator answers."""
        ours = list(simulate(session, self.config(session)))
        return session.with_commands(session.commands[: len(ours)]), ours

    def differences(self, commands: int, oracle: Oracle) -> Iterator[tuple[str, Session, Difference | None]]:
        """Goes through all sessions; torch and the simulator work at the same time."""
        begun: tuple[str, Session, list[list]] | None = None
        for name, session in self.sessions(commands):
            cut, ours = self.simulate(session)
            done, theirs = begun, oracle.end() if begun else None
            oracle.begin(cut)
            begun = name, cut, ours
            if done is not None and theirs is not None:
                yield self._difference(*done, *theirs)
        if begun is not None:
            yield self._difference(*begun, *oracle.end())

    def _difference(
        self, name: str, session: Session, ours: list[list], theirs: list[list], error: str | None
    ) -> tuple[str, Session, Difference | None]:
        self.ooms += sum(answer[0] == "out of memory" for answer in theirs)
        return name, session, difference(session, ours, theirs, error)
