"""What the samples of one job add up to: pure bookkeeping, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from prolog.nvml import Gpu
from prolog.processes import Process

MAX_PROBLEMS = 16
MAX_PROCESSES = 4096
"""Per GPU; a job that starts more of them is counted right, but told apart less well."""


@dataclass(frozen=True)
class Sighting:
    """A process on a GPU in one sample; `account_start_us`: the driver's start time for it, if known."""

    process: Process
    used_bytes: int | None
    belongs: bool
    account_start_us: int | None


@dataclass
class Seen:
    """A process over all samples; `account_start_us` ties it to the driver's record, even after its end."""

    peak_bytes: int | None
    account_start_us: int | None


@dataclass
class GpuTally:
    """One GPU; `peak_bytes` is the greatest sum over the job's processes in one sample."""

    gpu: Gpu | None = None
    peak_bytes: int | None = None
    own: dict[Process, Seen] = field(default_factory=dict)
    others: dict[Process, Seen] = field(default_factory=dict)

    def add(self, sightings: Iterable[Sighting]) -> bool:
        """Takes one sample; tells whether anything new was learnt."""
        changed = False
        own_bytes: list[int | None] = []
        for sighting in sightings:
            changed |= self._note(sighting)
            if sighting.belongs:
                own_bytes.append(sighting.used_bytes)
        held = [used for used in own_bytes if used is not None]
        if held and len(held) == len(own_bytes) and sum(held) > (self.peak_bytes or 0):
            self.peak_bytes = sum(held)
            changed = True
        return changed

    def _note(self, sighting: Sighting) -> bool:
        table, other = (self.own, self.others) if sighting.belongs else (self.others, self.own)
        other.pop(sighting.process, None)  # what a process is can become clear later
        seen = table.get(sighting.process)
        if seen is None:
            if len(table) < MAX_PROCESSES:
                table[sighting.process] = Seen(sighting.used_bytes, sighting.account_start_us)
            return len(table) <= MAX_PROCESSES
        changed = False
        if (sighting.used_bytes or 0) > (seen.peak_bytes or 0):
            seen.peak_bytes = sighting.used_bytes
            changed = True
        if seen.account_start_us is None and sighting.account_start_us is not None:
            seen.account_start_us = sighting.account_start_us
            changed = True
        return changed


@dataclass
class Tally:
    """All GPUs of the job, by the names that the prolog was given; `ended`: the sampler stopped in order."""

    gpus: dict[str, GpuTally] = field(default_factory=dict)
    samples: int = 0
    problems: list[str] = field(default_factory=list)
    ended: bool = False

    def note(self, problem: str) -> bool:
        """Keeps a problem once; tells whether it was new."""
        if problem in self.problems or len(self.problems) >= MAX_PROBLEMS:
            return False
        self.problems.append(problem)
        return True

    def to_json(self) -> dict[str, Any]:
        """The tally as JSON values."""
        return {
            "samples": self.samples,
            "problems": self.problems,
            "ended": self.ended,
            "gpus": {
                name: {
                    "gpu": asdict(gpu.gpu) if gpu.gpu else None,
                    "peak_bytes": gpu.peak_bytes,
                    "own": _rows(gpu.own),
                    "others": _rows(gpu.others),
                }
                for name, gpu in self.gpus.items()
            },
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Tally:
        """Reads what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        return cls(
            samples=int(document["samples"]),
            problems=[str(problem) for problem in document["problems"]],
            ended=bool(document["ended"]),
            gpus={
                str(name): GpuTally(
                    gpu=Gpu(**gpu["gpu"]) if gpu["gpu"] else None,
                    peak_bytes=gpu["peak_bytes"],
                    own=_from_rows(gpu["own"]),
                    others=_from_rows(gpu["others"]),
                )
                for name, gpu in document["gpus"].items()
            },
        )


def _rows(seen: dict[Process, Seen]) -> list[list[int | None]]:
    return [[p.pid, p.start_ticks, s.peak_bytes, s.account_start_us] for p, s in seen.items()]


def _from_rows(rows: list[list[Any]]) -> dict[Process, Seen]:
    return {Process(pid, start): Seen(peak, account_start) for pid, start, peak, account_start in rows}
