"""The rows of the table: `rows/*.toml`, one file for each kind of script."""

from __future__ import annotations

import fnmatch
import importlib.util
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
DEFAULT_GPU = "a100-80gb"

Status = Literal["exact", "bounded", "failed"]
WORSE = ("exact", "bounded", "failed")  # from best to worst


class RowError(Exception):
    """A file of rows is not valid; the text says where and why."""


class Row(BaseModel):
    """One script, and the worst status that its estimate may have.

    `command` starts in `scripts/`; `{python}` in it is the interpreter. `args` are further options of
    `gpumem estimate`. With `parameters`, the allocated peak must be at least `parameters * bytes_each`: what
    parameters, gradients and optimizer state take together (SGD in fp32: 8, with momentum: 12, Adam: 16).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    group: str = Field(min_length=1)
    command: tuple[str, ...] = Field(min_length=1)
    gpu: str = DEFAULT_GPU
    args: tuple[str, ...] = ()
    status: Status = "exact"
    requires: tuple[str, ...] = ()
    parameters: int | None = Field(default=None, gt=0)
    bytes_each: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.parameters is None) != (self.bytes_each is None):
            raise ValueError("parameters and bytes_each go together")
        return self

    @property
    def least_bytes(self) -> int | None:
        """What the job cannot do without, by arithmetic (bytes)."""
        if self.parameters is None or self.bytes_each is None:
            return None
        return self.parameters * self.bytes_each

    def missing(self) -> list[str]:
        """Required modules that this interpreter does not have."""
        return [name for name in self.requires if importlib.util.find_spec(name) is None]

    def words(self) -> list[str]:
        """The command with its interpreter."""
        return [word.replace("{python}", sys.executable) for word in self.command]

    def is_worse(self, status: Status) -> bool:
        """Whether `status` is worse than the one that this row may have."""
        return WORSE.index(status) > WORSE.index(self.status)


def read(paths: Iterable[Path]) -> list[Row]:
    """All rows of these files, in order.

    Raises:
        RowError: a file is not valid, or two rows have the same name.
    """
    rows: dict[str, Row] = {}
    for path in paths:
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
            found = [Row.model_validate(row) for row in table.get("row", ())]
        except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
            raise RowError(f"{path.name}: {error}") from None
        for row in found:
            if row.name in rows:
                raise RowError(f"{path.name}: there are two rows called {row.name}")
            rows[row.name] = row
    return list(rows.values())


def read_all() -> list[Row]:
    """All rows of the table, sorted by file."""
    return read(sorted((HERE / "rows").glob("*.toml")))


def select(rows: Sequence[Row], patterns: Sequence[str]) -> list[Row]:
    """The rows whose name or group matches one of the patterns (as file names do); all, if there are none."""
    if not patterns:
        return list(rows)
    return [
        row
        for row in rows
        if any(fnmatch.fnmatch(text, pattern) for text in (row.name, row.group) for pattern in patterns)
    ]
