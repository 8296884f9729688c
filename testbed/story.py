"""What is seen of a demo job: from one look at Slurm and at the history to the steps of its way. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from history.wire import JobRecord

GIB = 1024**3


class Step(StrEnum):
    """The steps of a job's way, in order."""

    DEFERRED = "deferred"
    PASSED = "passed unchanged"
    TRACED = "traced"
    REWRITTEN = "rewritten"
    KEPT = "keeps a whole GPU"
    RUNNING = "running"
    SHARING = "sharing"
    EPILOG = "epilog"
    HISTORY = "history"


@dataclass(frozen=True)
class Place:
    """A GPU that a job runs on."""

    node: str
    gpu: int

    def __str__(self) -> str:
        return f"{self.node} GPU {self.gpu}"


@dataclass
class JobStory:
    """A job, and the steps seen so far with what was seen and when (seconds since the first submission)."""

    name: str
    job_id: int
    steps: dict[Step, str] = field(default_factory=dict)
    times: dict[Step, float] = field(default_factory=dict)
    record: JobRecord | None = None
    slurm: Mapping[str, str] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the job has ended and its epilog too."""
        return Step.EPILOG in self.steps

    @property
    def place(self) -> Place | None:
        """The GPU that the job runs on now."""
        return place(self.slurm)

    def look(
        self, slurm: Mapping[str, str], record: JobRecord | None, whole: int, now_s: float
    ) -> list[Step]:
        """Takes in one look; returns the steps that are new."""
        self.slurm = slurm
        self.record = record or self.record
        return [step for step, text in seen(slurm, record, whole) if self.note(step, text, now_s)]

    def note(self, step: Step, text: str, now_s: float) -> bool:
        """Notes a step; False if it was noted before."""
        if step in self.steps:
            return False
        self.steps[step] = text
        self.times[step] = now_s
        return True


def seen(slurm: Mapping[str, str], record: JobRecord | None, whole: int) -> Iterable[tuple[Step, str]]:
    """The steps that one look shows.

    Args:
        slurm: `scontrol show job -d`.
        record: the job in the history.
        whole: shards of a whole GPU.
    """
    state = slurm.get("JobState", "")
    if record is not None:
        yield from _decided(slurm, record, whole)
    where = place(slurm)
    if state == "RUNNING" and where:
        yield Step.RUNNING, f"on {where} with {granted(slurm)}"
    if state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"):
        yield Step.EPILOG, f"done, job {state} {slurm.get('ExitCode', '')}".rstrip()
    if record is not None and record.measured_peak_bytes is not None:
        yield Step.HISTORY, f"measured {gib(record.measured_peak_bytes)}"


def _decided(slurm: Mapping[str, str], record: JobRecord, whole: int) -> Iterable[tuple[Step, str]]:
    if record.action == "pass":
        yield Step.PASSED, record.reason or ""
    if record.action == "defer":
        yield Step.DEFERRED, f"asked for {record.asked}, held while its script is traced"
    if record.estimated_peak_bytes is not None:
        yield Step.TRACED, f"needs {gib(record.estimated_peak_bytes)}"
    elif record.state in ("released", "failed"):
        yield Step.TRACED, record.reason or "no estimate"
    shards = shards_of(slurm.get("TresPerNode", ""))
    if record.state in ("applied", "rewritten") and shards and shards < whole:
        yield Step.REWRITTEN, f"{record.asked} is now shard:{shards}"
    if record.state == "released" and shards == whole:
        yield Step.KEPT, f"with shard:{whole}, all of one"


def place(slurm: Mapping[str, str]) -> Place | None:
    """The GPU of a running job with one GPU, or a part of one, as `scontrol show job -d` has it."""
    match = re.search(r"\(IDX:(\d+)\)", slurm.get("GRES", ""))
    return (
        Place(slurm.get("Nodes", "?"), int(match[1]))
        if match and slurm.get("JobState") == "RUNNING"
        else None
    )


def granted(slurm: Mapping[str, str]) -> str:
    """What a running job was given: shard:24, or gpu:1."""
    kind, _, rest = slurm.get("GRES", "").partition("(")[0].partition(":")
    return f"{kind}:{rest.rpartition(':')[2]}" if kind else "nothing"


def shards_of(tres: str) -> int | None:
    """The number of shards in a TRES text: gres:shard:24."""
    match = re.search(r"shard(?::[a-z]\w*)?[:=](\d+)", tres)
    return int(match[1]) if match else None


def gib(size: int) -> str:
    """Bytes for people: 20.9 GiB."""
    return f"{size / GIB:.1f} GiB"
