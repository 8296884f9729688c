"""Job arrays: which tasks there are, and whether they all run the same."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_READ = 1024**2  # bytes of one file
LARGEST_INDEX = 4_000_001  # slurm.conf(5): MaxArraySize
_PART = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?")
_TASK = re.compile(rb"SLURM_ARRAY_(TASK|JOB)")  # SLURM_ARRAY_JOB_ID with a scheme of one's own, as well
_WORDS = re.compile(r"[\w./+@-]+")


@dataclass(frozen=True)
class JobArray:
    """The tasks of `sbatch --array`: their indices in ascending order, as ranges."""

    ranges: tuple[range, ...]

    @property
    def first(self) -> int:
        """The smallest index."""
        return min(part[0] for part in self.ranges)

    @property
    def last(self) -> int:
        """The largest index."""
        return max(part[-1] for part in self.ranges)

    @property
    def count(self) -> int:
        """How many tasks there are."""
        return len(set().union(*self.ranges))

    def variables(self, index: int) -> dict[str, str]:
        """What Slurm sets for the task of that index; its SLURM_ARRAY_JOB_ID is not among them."""
        step = self.ranges[0].step if len(self.ranges) == 1 else 1
        return {
            "SLURM_ARRAY_TASK_ID": str(index),
            "SLURM_ARRAY_TASK_COUNT": str(self.count),
            "SLURM_ARRAY_TASK_MIN": str(self.first),
            "SLURM_ARRAY_TASK_MAX": str(self.last),
            "SLURM_ARRAY_TASK_STEP": str(step),
        }


def parse(text: str) -> JobArray | None:
    """Reads the value of `--array`, such as `0-15:4,20%2`; None if it is none that sbatch would take."""
    indices, _, _ = text.strip().strip("[]").partition("%")
    ranges = []
    for part in indices.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            return None
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if last < first or step < 1 or last > LARGEST_INDEX:
            return None
        ranges.append(range(first, last + 1, step))
    return JobArray(tuple(ranges))


def may_differ(script: str, arguments: Sequence[str], cwd: Path, read: Iterable[Path]) -> bool:
    """Whether tasks of an array may do different things: some text that they run names their index.

    Looked at are the script, the files that it or its arguments name (from `cwd`), and the files `read` that
    its programs were seen to read. A shell script that cannot be found might say anything.
    """
    if any(_TASK.search(text.encode()) for text in (script, *arguments)):
        return True
    named = {word for text in (script, *arguments) for word in _WORDS.findall(text)}
    for word in named:
        content = _content(cwd / word)
        if content is None and word.endswith((".sh", ".bash")):
            return True
        if content is not None and _TASK.search(content):
            return True
    return any(_TASK.search(_content(path) or b"") for path in read)


def _content(path: Path) -> bytes | None:
    """The beginning of a regular file; None if there is none that can be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as file:
            return file.read(MOST_READ)
    except (OSError, ValueError):
        return None
