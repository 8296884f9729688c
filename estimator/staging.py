"""Data that a job would have brought to its node first: recognised when its program misses them.

A dry run copies nothing from elsewhere; its stand-ins note in files `skipped-PID` what they did not do
(`shims.py`). These files are written in the sandbox, so nothing in them is trusted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from estimator import containers, secrets

MOST_COMMANDS = 1000
MOST_BYTES = 256 * 1024  # of one command
SHOWN = 120  # characters of a command
_MISSING = re.compile(r"FileNotFoundError|NotADirectoryError|[Nn]o such file|[Nn]ot found|[Ii]s empty")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named")
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_COPIERS = re.compile(
    r"^(?:\S*/)?(?:cp|mv|tar|unzip|rsync|gunzip|ln|dd): "
    r".*(?:No such file|annot (?:stat|open|find)|No space left)"
)
_PATHS = re.compile(r"[\w.+@~-]*/[\w./+@~-]*|[\w+@~-]+\.[\w+@~-]+")
_URL = re.compile(r"(?:https?|ftp|s3|gs|hdfs)://|[\w.@-]+:(?!\\)")


def skipped(folder: Path, *reasons: str) -> list[tuple[str, ...]]:
    """The commands that were skipped for one of these reasons, in the order they were given."""
    found = []
    paths = [path for path in folder.glob("skipped-*") if path.is_file() and not path.is_symlink()]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns)[:MOST_COMMANDS]:
        with path.open("rb") as file:
            why, *words = file.read(MOST_BYTES).decode("utf-8", "replace").split("\0")[:-1]
        if why in reasons and words:
            found.append(tuple(words))
    return found


def of_container(name: str, folder: Path) -> str | None:
    """That a job runs in a container which could not be traced; None if it does not."""
    for why in containers.IN_CONTAINERS:
        for command in skipped(folder, why):
            return f"{name}: {_shown(command)} {why}"
    return None


def explain(reason: str, commands: Sequence[Sequence[str]], tail: str, cwd: Path) -> str:
    """What to add to the reason why a run failed: that it misses what one of these commands brings.

    Args:
        reason: how the program failed.
        commands: what was skipped.
        tail: the end of the job's output, in which `cp` and such may have complained.
        cwd: where the job starts.
    """
    if _FULL.search(reason):
        return " (a dry run keeps only 2 GiB of what is written: copies of data do not fit)"
    if _NO_MODULE.search(reason):
        installed = [command for command in commands if "install" in command]
        why = "a dry run installs only with --no-index: make the environment before the job"
        return f" ({_shown(installed[-1])} was skipped: {why})" if installed else ""
    if not _MISSING.search(reason):
        return ""
    for named in _PATHS.findall(reason):
        missing = cwd / named
        for command in reversed(commands):
            if any(_brings(place, name, missing, cwd) for place, name in _targets(command, cwd)):
                return f" ({_shown(command)} would have brought it: a dry run copies nothing from elsewhere)"
    complaint = next((line for line in reversed(tail.splitlines()) if _COPIERS.search(line)), None)
    return f"; before that, {complaint.strip()[:200]}" if complaint and complaint not in reason else ""


def _targets(command: Sequence[str], cwd: Path) -> Iterator[tuple[Path | None, str]]:
    """The places that a command names, and the names of what it fetches."""
    for word in command[1:]:
        value = word.partition("=")[2] if word.startswith("-") else word
        if not value:
            continue
        if _URL.match(value):
            yield None, re.sub(r"(\.(tar|tgz|zip|gz|bz2|xz|zst|git))+$", "", Path(value.rstrip("/")).name)
        else:
            yield cwd / value, ""


def _brings(place: Path | None, name: str, missing: Path, cwd: Path) -> bool:
    """Whether the missing file lies in the place, or in something of that name."""
    if place is None:
        return len(name) > 2 and any(part.partition(".")[0] == name for part in missing.parts)
    above = {cwd, *cwd.parents}
    return place not in above and (missing == place or place in missing.parents)


def _shown(command: Sequence[str]) -> str:
    hidden = secrets.of_arguments(command)
    text = shlex.join(secrets.hide(word, hidden) for word in command)
    return f"`{text if len(text) <= SHOWN else text[: SHOWN - 3] + '...'}`"
