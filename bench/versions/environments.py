"""Virtual environments with the versions of Python and PyTorch to try, made once and kept."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("versions.toml")
PYENV = Path.home() / ".pyenv" / "versions"


class NotMade(Exception):
    """An environment cannot be made; the text says why."""


@dataclass(frozen=True)
class Version:
    """A PyTorch, a Python (major and minor number) and what else its environment holds."""

    torch: str
    python: str
    packages: tuple[str, ...]

    def __str__(self) -> str:
        return f"torch {self.torch}, Python {self.python}"


def listed(path: Path = LIST) -> list[Version]:
    """The versions of a TOML file of `[[version]]` tables."""
    with path.open("rb") as file:
        tables = tomllib.load(file)["version"]
    return [Version(one["torch"], one["python"], tuple(one["packages"])) for one in tables]


def interpreter(version: Version, cache: Path) -> Path:
    """The Python of the version's environment below `cache`; makes that on its first use.

    Raises:
        NotMade: there is no such Python on this machine, or a package cannot be installed.
    """
    folder = cache / f"torch{version.torch}-py{version.python}"
    python = folder / "bin" / "python"
    if (folder / ".done").exists():
        return python
    base = _base(version.python)
    if base is None:
        raise NotMade(f"Python {version.python} is neither on PATH nor in {PYENV}")
    shutil.rmtree(folder, ignore_errors=True)
    packages = [f"torch=={version.torch}", *version.packages]
    install = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *packages]
    for command in ([base, "-m", "venv", folder], install):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotMade((done.stderr.strip().splitlines() or ["no reason known"])[-1])
    (folder / ".done").touch()
    return python


def _base(python: str) -> Path | None:
    if found := shutil.which(f"python{python}"):
        return Path(found)
    return next(iter(sorted(PYENV.glob(f"{python}.*/bin/python"), reverse=True)), None)
