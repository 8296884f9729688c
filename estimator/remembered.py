"""Estimates of earlier runs, kept in the user's own cache folder, and found again by what a job starts.

Two batch scripts that start the same programs, with the same interpreters, arguments and environments,
share an estimate, as long as the files that these read stay as they are. A script that does more than start
programs (see `essence.is_plain`) has to be the same in all that it does as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from estimator import essence, inputs
from estimator.catalog import GPU
from estimator.dry_run import MOST_LAUNCHES, Launch
from estimator.estimate import Estimate
from settings import Estimate as Settings

MOST = 200  # estimates
MOST_BYTES = 4 * 1024**2  # of one
_SCRIPT_FILES = ("*.py", "fake_cuda/lib/*.so*", "tracer/*.py")
# Do not change what is found, only whether it is: an estimate of a run that was cut short is not kept.
_LIMITS = frozenset({"timeout_s", "memory_mib", "gpus_file", "require_containment"})
_ESTIMATE = TypeAdapter(Estimate)


class Remembered:
    """The estimates in `folder` of jobs that are alike up to what their scripts start.

    Args:
        folder: of the user; made when it is first needed.
        launch: the job.
        gpu: what it is estimated for.
        settings: by which it is.
        guarded: whether the memory guard is looked at, too.
    """

    def __init__(
        self, folder: Path, launch: Launch, gpu: GPU, settings: Settings, guarded: bool = False
    ) -> None:
        text = launch.script.path.read_text("utf-8", "replace") if launch.script else ""
        self._name = launch.name if launch.script is None else launch.script.job_name
        what = [
            1,  # version of this list
            guarded,
            _ourselves(),
            gpu.model_dump(mode="json"),
            settings.model_dump(mode="json", exclude=set(_LIMITS)),
            asdict(launch.layout),
            launch.world_size,
            str(launch.array),
            str(launch.cwd),
            None if _is_plain(launch, text) else [essence.of_script(text), *launch.command],
        ]
        self._all = folder
        self._folder = folder / _hash(what)

    @property
    def any(self) -> bool:
        """Whether it is worth while to find out what the job starts."""
        return self._folder.is_dir()

    def find(self, starts: Callable[[], Sequence[str]]) -> Estimate | None:
        """The estimate of a job that `starts` the same programs, if all that it depends on is unchanged."""
        began = time.monotonic()
        launches = starts()
        if not launches:
            return None
        try:
            path = self._path(launches)
            with path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
            kept = json.loads(data)
            estimate = _ESTIMATE.validate_json(json.dumps(kept["estimate"]))
            if kept["job_name"] not in (None, self._name):
                return None
            if not all(inputs.is_same(file) for file in estimate.inputs):
                return None
            os.utime(path)  # the least recently used goes first
        except (OSError, ValueError, KeyError, TypeError, ValidationError, RecursionError):
            return None
        return as_reused(estimate, time.monotonic() - began)

    def keep(self, launches: Sequence[str], estimate: Estimate) -> None:
        """Remembers an estimate; a cache that cannot be written is none."""
        if not launches or len(launches) > MOST_LAUNCHES:
            return
        kept = {
            "job_name": self._name if inputs.name_jobs(estimate.inputs) else None,
            "estimate": json.loads(_ESTIMATE.dump_json(estimate)),
        }
        data = json.dumps(kept)
        if len(data) > MOST_BYTES:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._path(launches)
            with tempfile.NamedTemporaryFile("w", dir=self._folder, delete=False) as file:
                file.write(data)
            Path(file.name).replace(path)
            self._forget()

    def _path(self, launches: Sequence[str]) -> Path:
        return self._folder / f"{_hash(sorted(launches))}.json"

    def _forget(self) -> None:
        paths = sorted(self._all.glob("*/*"), key=lambda path: path.stat().st_mtime)
        for path in paths[:-MOST]:
            path.unlink()
            with contextlib.suppress(OSError):  # others are in there
                path.parent.rmdir()


def folder_of(environment: Mapping[str, str]) -> Path | None:
    """The user's cache folder; None without a home."""
    cache = environment.get("XDG_CACHE_HOME", "")
    if cache.startswith("/"):
        return Path(cache) / "gpumem"
    home = environment.get("HOME", "")
    return Path(home) / ".cache" / "gpumem" if home.startswith("/") and Path(home).is_dir() else None


def as_reused(estimate: Estimate, wall_s: float) -> Estimate:
    """The estimate with a note that it is an earlier one, found in `wall_s`."""
    note = "estimated before: the job starts the same programs, and what they read is unchanged (--no-cache)"
    return replace(estimate, wall_s=wall_s, notes=(*estimate.notes, note))


def _is_plain(launch: Launch, text: str) -> bool:
    return essence.is_plain(text) if launch.script else essence.starts_python(launch.command)


def _ourselves() -> list[Any]:
    """Another gpumem may estimate otherwise."""
    here = Path(__file__).parent
    files = sorted(path for pattern in _SCRIPT_FILES for path in here.glob(pattern))
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _hash(what: object) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()
