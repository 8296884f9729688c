"""What a batch script says about itself: its interpreter, and what its `sbatch` options ask for.

Only what an estimate needs is understood: where it starts, which partition, how many GPUs, tasks and nodes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from estimator import sbatch_options

MAX_BYTES = 4 * 1024**2  # slurmctld's own limit (MaxScriptSize)
_THOUSANDS = {"k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4, "p": 1024**5}


class NotABatchScript(Exception):
    """The file is nothing that `sbatch` would take; the text says why, and what to do."""


@dataclass(frozen=True)
class GpuRequest:
    """GPUs asked for: `count` of them `per` node, socket, task or job.

    `type` is the GRES type; None for any, and for several.
    """

    count: int
    per: str
    type: str | None = None


@dataclass(frozen=True)
class BatchScript:
    """A batch script: `options` holds its `sbatch` options by long name, a flag's value is "".

    Of a heterogeneous job these are the options of its first component, on which the script itself runs;
    `others` are those of its other components.
    """

    path: Path
    interpreter: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    others: tuple[Mapping[str, str], ...] = ()

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
        """Nodes of the job (the smallest number of a range or list), at least one."""
        return min(_number(some.split("-")[0]) for some in self.options.get("nodes", "").split(","))

    @property
    def gpus(self) -> GpuRequest | None:
        """The GPUs that are asked for; None if there are none, or not as a number of GPUs."""
        return gpus_of(self.options)

    def with_options(self, words: Sequence[str], environment: Mapping[str, str]) -> BatchScript:
        """The job that `sbatch words script` submits in this environment: both override the script.

        Raises:
            NotABatchScript: the words are no options; the text says which.
        """
        try:
            over = sbatch_options.of_environment(environment) | sbatch_options.read(words)
        except sbatch_options.Refused as error:
            raise NotABatchScript(f"sbatch options {shlex.join(words)}: {error}") from None
        return BatchScript(
            self.path,
            self.interpreter,
            {**self.options, **over},
            tuple({**other, **over} for other in self.others),
        )


def gpus_of(options: Mapping[str, str]) -> GpuRequest | None:
    """The GPUs that a component's options ask for; None if there are none, or not as a number of GPUs."""
    for option, per in (
        ("gpus-per-node", "node"),
        ("gpus-per-task", "task"),
        ("gpus-per-socket", "socket"),
        ("gpus", "job"),
    ):
        if value := options.get(option):
            return _request([f"gpu:{one}" for one in _listed(value)], per)
    for option, per in (
        ("gres", "node"),
        ("tres-per-node", "node"),
        ("tres-per-task", "task"),
        ("tres-per-job", "job"),
    ):
        if (value := options.get(option)) and (request := _request(_listed(value), per)):
            return request
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
    try:
        options, *others = sbatch_options.components(rest)
    except sbatch_options.Refused as error:
        raise NotABatchScript(f"{path}: sbatch refuses its options: {error}") from None
    return BatchScript(path, interpreter, options, tuple(others))


def _listed(value: str) -> list[str]:
    """Splits a list of GRES at its commas; where they lie (`gpu:2(S:0,1)`) does not matter."""
    return re.sub(r"\([^)]*\)?", "", value).split(",")


def _request(wanted: Sequence[str], per: str) -> GpuRequest | None:
    """Adds up the GPUs of a list such as `gpu:a100:2`, `gres/gpu=1` and `gpu`."""
    count = 0
    types: set[str | None] = set()
    for one in wanted:
        name, *rest = re.split("[:=]", re.sub(r"^gres[:/]", "", one.strip().lower()))
        if name != "gpu":
            continue
        number = re.fullmatch(r"(\d{1,6})([kmgtp]?)", rest[-1]) if rest else None
        many = int(number[1]) * _THOUSANDS.get(number[2], 1) if number else 1
        kind = rest[:-1] if number else rest
        if many:
            types.add(":".join(kind) or None)
        count += many
    return GpuRequest(count, per, types.pop() if len(types) == 1 else None) if count else None


def _number(value: str | None) -> int:
    """A count such as `4` or `2k`; one for anything else."""
    match = re.fullmatch(r"(\d{1,6})([km]?)", (value or "").strip().lower())
    return max(1, int(match[1]) * _THOUSANDS.get(match[2], 1)) if match else 1
