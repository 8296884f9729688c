"""The same job with half the batch, for a second trace: one option's number is halved where it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from estimator.dry_run import Launch


class NoSuchOption(Exception):
    """The job does not have the option with a number; the text says so."""


@contextmanager
def halved(launch: Launch, option: str) -> Iterator[tuple[Launch, str]]:
    """The job with half the number of `option` (`--batch-size 12`, `train.batch=12`), and what was changed.

    It is looked for in the command or the script's arguments, then in the text of the script, of which a
    changed copy is made for as long as this lasts.

    Raises:
        NoSuchOption: it is not there, or its number is 1.
    """
    command, change = _in_words(launch.command, option)
    if change:
        yield replace(launch, command=command), change
        return
    if launch.script is None:
        raise NoSuchOption(f"{option} with a number above 1 is not in the command")
    text, change = _in_text(launch.script.path.read_text(encoding="utf-8", errors="replace"), option)
    if not change:
        raise NoSuchOption(f"{option} with a number above 1 is not in {launch.script.path.name}")
    with TemporaryDirectory(prefix="gpumem-half-") as folder:
        copy = Path(folder, launch.script.path.name)
        copy.write_text(text, encoding="utf-8")
        yield replace(launch, script=replace(launch.script, path=copy)), change


def _in_words(words: Sequence[str], option: str) -> tuple[tuple[str, ...], str]:
    changed = list(words)
    for at, word in enumerate(words):
        if word == option and at + 1 < len(words) and (half := _half(words[at + 1])):
            changed[at + 1] = half
            return tuple(changed), f"{option} {half}"
        if word.startswith(f"{option}=") and (half := _half(word[len(option) + 1 :])):
            changed[at] = f"{option}={half}"
            return tuple(changed), changed[at]
    return tuple(words), ""


def _in_text(text: str, option: str) -> tuple[str, str]:
    for match in re.finditer(rf"(?<![\w.-]){re.escape(option)}(=|[ \t]+)(\d+)(?![\w.])", text):
        if half := _half(match[2]):
            new = f"{option}{match[1]}{half}"
            return text[: match.start()] + new + text[match.end() :], new
    return text, ""


def _half(number: str) -> str:
    """Half of a whole number above 1, as text; empty for anything else."""
    return str(int(number) // 2) if number.isdigit() and int(number) > 1 else ""
