"""From evidence to numbers: what a job used of one GPU. Pure.

Two witnesses. The sampler sees all processes of a moment at once, and misses what is shorter than its
interval. The driver's accounting keeps the true peak of each process, and does not know which of them held it
together. Where both leave the peak open it is unknown: None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from prolog.jobdir import GpuBefore
from prolog.nvml import Account, Gpu
from prolog.processes import Process
from prolog.tally import GpuTally, Seen

SAME_START_US = 1_000_000
"""Two records of one PID are of one process if their start times differ by no more than this."""

Source = Literal["accounting", "sampling", "both"]


@dataclass(frozen=True)
class Evidence:
    """All that is known of one GPU at the end of a job.

    `tally` None: the sampler left nothing. `accounts` None: the driver's records could not be read.
    `shared`: another job was given this GPU meanwhile; None: not known.
    """

    before: GpuBefore
    gpu: Gpu | None
    tally: GpuTally | None
    accounts: tuple[Account, ...] | None
    shared: bool | None
    started_at: float | None


@dataclass(frozen=True)
class Use:
    """What the job used of the GPU; `peak_bytes` is the most that its processes held there at one moment."""

    peak_bytes: int | None = None
    source: Source | None = None
    processes: int | None = None
    shared: bool | None = None
    problems: tuple[str, ...] = ()


@dataclass
class _Sorted:
    """The driver's new records: of processes known to be the job's, and of processes nobody saw."""

    own: dict[Process, Account] = field(default_factory=dict)
    missed: list[Account] = field(default_factory=list)


def use_of(evidence: Evidence) -> Use:
    """Weighs the evidence."""
    tally = evidence.tally or GpuTally()
    shared = True if evidence.shared or tally.others else evidence.shared
    if evidence.gpu is not None and evidence.gpu.mig:
        return Use(shared=shared, problems=("MIG is on: not measured",))
    new = [account for account in evidence.accounts or () if _is_new(account, evidence)]
    accounts = _sort(new, tally)
    if accounts.missed and shared is not False:
        # whose they are cannot be told any more: what was sampled stands, what was not is unknown
        text = f"{len(accounts.missed)} processes were too short to be sampled and may belong to another job"
        use = _combine(tally, list(accounts.own.values()), len(tally.own), watched=False)
        return Use(use.peak_bytes, use.source, None, shared, (*use.problems, text))
    own = [*accounts.own.values(), *accounts.missed]
    watched = evidence.accounts is not None and evidence.before.accounting
    use = _combine(tally, own, len(tally.own) + len(accounts.missed), watched=watched)
    return Use(use.peak_bytes, use.source, use.processes, shared, use.problems)


def _combine(tally: GpuTally, accounts: list[Account], processes: int, *, watched: bool) -> Use:
    """`watched`: the driver kept records all the time, so that no process can have been missed."""
    if processes == 0:
        return Use(0, "accounting", 0) if watched else Use(problems=("no process was seen",))
    peaks = [account.peak_bytes for account in accounts if account.peak_bytes is not None]
    single = max(peaks, default=None)
    if processes == 1:
        return Use(*_greater(single, tally.peak_bytes), processes)
    if len(peaks) == processes and not _overlap(accounts):
        return Use(single, "accounting", processes)
    if tally.peak_bytes is None:
        text = f"{processes} processes, together never sampled: their joint peak is unknown"
        return Use(processes=processes, problems=(text,))
    unsampled = processes - len(tally.own)
    text = f"{unsampled} of {processes} processes were too short to be sampled: the peak may have been higher"
    return Use(*_greater(single, tally.peak_bytes), processes, problems=(text,) if unsampled else ())


def _greater(accounted: int | None, sampled: int | None) -> tuple[int | None, Source | None]:
    if accounted is None and sampled is None:
        return None, None
    if accounted == sampled:
        return accounted, "both"
    if sampled is None or (accounted or 0) > sampled:
        return accounted, "accounting"
    return sampled, "sampling"


def _overlap(accounts: Iterable[Account]) -> bool:
    """Whether two processes may have run at the same time."""
    end_us: float = 0
    for account in sorted(accounts, key=lambda account: account.start_us):
        if account.start_us < end_us:
            return True
        end_us = float("inf") if not account.duration_us else account.start_us + account.duration_us
    return False


def _is_new(account: Account, evidence: Evidence) -> bool:
    """Whether the process started after the prolog."""
    if evidence.before.accounts is not None:
        there = evidence.before.accounts.get(account.pid)
        return there is None or abs(there - account.start_us) > SAME_START_US
    return evidence.started_at is not None and account.start_us >= evidence.started_at * 1e6 - SAME_START_US


def _sort(accounts: Iterable[Account], tally: GpuTally) -> _Sorted:
    result = _Sorted()
    for account in accounts:
        own = _find(account, tally.own, tally.others)
        if own is not None:
            result.own[own] = account
        elif _find(account, tally.others, tally.own) is None:
            result.missed.append(account)
    return result


def _find(account: Account, table: Mapping[Process, Seen], other: Mapping[Process, Seen]) -> Process | None:
    """The process of `table` that the record is about: the same start, or no other process had that PID."""
    same_pid = [(process, seen) for process, seen in table.items() if process.pid == account.pid]
    for process, seen in same_pid:
        start = seen.account_start_us
        if start is not None and abs(start - account.start_us) <= SAME_START_US:
            return process
    if len(same_pid) == 1 and all(process.pid != account.pid for process in other):
        process, seen = same_pid[0]
        return process if seen.account_start_us is None else None
    return None
