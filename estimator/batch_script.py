"""What a batch script says about itself: its interpreter and its `#SBATCH` options, as `sbatch` reads them.

Only what an estimate needs is understood: where it starts, which partition, how many GPUs, tasks and nodes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MAX_BYTES = 4 * 1024**2  # slurmctld's own limit (MaxScriptSize)
SHORT_OPTIONS = {"p": "partition", "J": "job-name", "D": "chdir", "n": "ntasks", "N": "nodes", "G": "gpus"}


class NotABatchScript(Exception):
    """The file is nothing that `sbatch` would take; the text says why, and what to do."""


@dataclass(frozen=True)
class GpuRequest:
    """GPUs asked for: `count` of them `per` node, task or job; `type` is the GRES type or None for any."""

    count: int
    per: str
    type: str | None = None


@dataclass(frozen=True)
class BatchScript:
    """A batch script: `options` holds its `#SBATCH` options by long name, a flag's value is ""."""

    path: Path
    interpreter: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def job_name(self) -> str:
        """The job's name; by default that of the file."""
        return self.options.get("job-name") or self.path.name

    @property
    def partition(self) -> str | None:
        """The first partition that is named."""
        return self.options.get("partition", "").split(",")[0] or None

    @property
    def chdir(self) -> Path | None:
        """Where the job starts, if not where it is submitted."""
        return Path(chdir) if (chdir := self.options.get("chdir")) else None

    @property
    def ntasks(self) -> int:
        """Tasks of the job, at least one."""
        return _number(self.options.get("ntasks"))

    @property
    def nodes(self) -> int:
        """Nodes of the job (the smaller number of a range), at least one."""
        return _number(self.options.get("nodes", "").split("-")[0])

    @property
    def gpus(self) -> GpuRequest | None:
        """The GPUs that are asked for; None if there are none, or not as a number of GPUs."""
        for option, per in (("gpus-per-node", "node"), ("gpus-per-task", "task"), ("gpus", "job")):
            if value := self.options.get(option):
                return _gpus(value.split(",")[0].split(":"), per)
        for gres in self.options.get("gres", "").split(","):
            name, *rest = gres.removeprefix("gres:").removeprefix("gres/").split(":")
            if name == "gpu":
                return _gpus(rest, "node")
        return None


def read(path: Path) -> BatchScript:
    """Reads the batch script at `path`.

    Raises:
        NotABatchScript: it cannot be read, is far too big, or does not begin with `#!`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NotABatchScript(f"{path}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise NotABatchScript(f"{path}: too big for a batch script (more than {MAX_BYTES // 1024**2} MiB)")
    return parse(path, data.decode("utf-8", "replace"))


def parse(path: Path, text: str) -> BatchScript:
    """Reads the batch script `text`; `path` is only named in errors and gives the job its name.

    Raises:
        NotABatchScript: as `read`.
    """
    first, *rest = text.split("\n") if text else [""]
    if first.endswith("\r"):
        raise NotABatchScript(f"{path}: has DOS line breaks, which sbatch refuses; convert it with dos2unix")
    if not first.startswith("#!") or not first[2:].strip():
        python = ' (a Python program is estimated with "gpumem estimate -- python ...")'
        hint = python if path.suffix == ".py" else ""
        raise NotABatchScript(f"{path}: is not a batch script: its first line must begin with #!{hint}")
    program, _, argument = first[2:].strip().partition(" ")
    interpreter = (program, argument.strip()) if argument.strip() else (program,)
    return BatchScript(path, interpreter, _options(rest))


def _options(lines: list[str]) -> dict[str, str]:
    """The `#SBATCH` options up to the first command, later ones winning, as sbatch(1) has it."""
    options: dict[str, str] = {}
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if line.startswith("#SBATCH"):
            try:
                words = shlex.split(line[len("#SBATCH") :], comments=True)
            except ValueError:
                continue
            options |= _read_words(words)
    return options


def _read_words(words: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            name = name[2:]
        elif match := re.fullmatch(r"-([A-Za-z])(.*)", word, re.DOTALL):
            name, value = SHORT_OPTIONS.get(match[1], match[1]), match[2].removeprefix("=")
            equals = value
        else:
            continue
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        options[name] = value
    return options


def _gpus(words: list[str], per: str) -> GpuRequest | None:
    """Reads `[type:]count` split at the colons; a missing count is one GPU."""
    count = words.pop() if words and words[-1].isdigit() else "1"
    return GpuRequest(int(count), per, words[0] if words else None) if int(count) else None


def _number(value: str | None) -> int:
    return max(1, int(value)) if value and value.isdigit() else 1
