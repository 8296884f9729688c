"""Slurm as gpumemd needs it: find the jobs that decisions are about, resize and release pending ones."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_TAG = re.compile(r" AdminComment=gpumem decision=([0-9a-f]{1,64})\b")
_TAGGED_JOB = re.compile(rf"^JobId=(\d+)\b.*{_TAG.pattern}", re.MULTILINE)
_GRES = re.compile(r"\b(gpu|shard)(?::[^:,(]+)?:(\d+)([KMG]?)\b")
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_RUN_COLUMNS = (
    *("State", "UserID", "Partition", "Reason", "Requeue"),
    *("RestartCnt", "ArrayTaskID", "Reservation", "Deadline"),
)
_FEW = 8
_MAX_REMEMBERED = 100_000


class SlurmError(Exception):
    """Slurm did not do what it was asked for; the text is its own."""


@dataclass(frozen=True)
class Job:
    """A job as Slurm sees it now; `state` is a word like PENDING or RUNNING. A job array counts as one."""

    id: int
    user_id: int
    state: str

    @property
    def pending(self) -> bool:
        """Whether it has not started yet."""
        return self.state == "PENDING"


@dataclass(frozen=True)
class Partition:
    """A partition as slurmctld knows it.

    `per_gpu_defaults`: its jobs get CPUs or memory by the GPUs that they ask for (JobDefaults).
    `shards_per_gpu`: what its nodes give one GPU, each number once; nodes without shards do not count.
    """

    per_gpu_defaults: bool = False
    shards_per_gpu: frozenset[float] = frozenset()


@dataclass(frozen=True)
class BatchRun:
    """How a job that has run stands with Slurm, by whose words `state` and `reason` are.

    `requeue`: it may be started again. `is_task`: of an array. `is_bound`: to a reservation or a deadline.
    """

    state: str
    reason: str
    user_id: int
    partition: str
    requeue: bool
    restarts: int
    is_task: bool
    is_bound: bool


class Slurm(Protocol):
    """A way to reach slurmctld. Every call may block for seconds and raise SlurmError."""

    def find(self, wanted: Mapping[str, int]) -> dict[str, Job]:
        """The jobs whose admin comment names a decision of `wanted` (decision id -> user id)."""
        ...

    def job(self, job_id: int) -> Job | None:
        """The job, or None if Slurm does not know it (any more)."""
        ...

    def release(self, job_id: int, gres: str, not_before: int | None, admin_comment: str) -> None:
        """Gives a pending job its final GRES and lets it start, at once or from unix time `not_before` on."""
        ...

    def batch_run(self, job_id: int) -> BatchRun | None:
        """How the job stands; None if Slurm does not know it (any more)."""
        ...

    def requeue(self, job_id: int) -> None:
        """Makes a job that has run wait for another run: for two minutes at least."""
        ...

    def resize(self, job_id: int, gres: str, admin_comment: str) -> None:
        """Changes the GRES of a pending job."""
        ...

    def error_file(self, job_id: int) -> Path | None:
        """Where the job's batch script writes its errors; None if that is not known."""
        ...

    def arrays(self, job_ids: Sequence[int]) -> dict[int, int]:
        """Those of these jobs that are tasks of an array, with its job id, as long as Slurm knows them."""
        ...

    def user_name(self) -> str:
        """The user that slurmctld runs as (SlurmUser)."""
        ...

    def partitions(self) -> dict[str, Partition]:
        """All partitions, by name."""
        ...


def admin_comment(decision_id: str, asked: str, got: str | None = None) -> str:
    """What gpumem writes into a job's admin comment, and finds it by."""
    return f"gpumem decision={decision_id} asked=gres:{asked}" + (f" got=gres:{got}" if got else "")


class ScontrolSlurm:
    """Slurm through its commands `squeue` and `scontrol`."""

    def __init__(self, conf: Path | None = None, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s
        self._environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        chosen = str(conf) if conf else os.environ.get("SLURM_CONF")
        if chosen:
            self._environment["SLURM_CONF"] = chosen
        self._named: OrderedDict[int, list[str]] = OrderedDict()  # decisions by the jobs that name them

    def find(self, wanted: Mapping[str, int]) -> dict[str, Job]:
        """See `Slurm.find`.

        squeue of older versions cannot print admin comments, so each job of the users concerned is looked at
        once. A job only counts for a decision about a job of the same user.
        """
        users = ",".join(str(uid) for uid in sorted(set(wanted.values())))
        jobs = self._jobs("--user", users)
        self._look_at([job.id for job in jobs if job.id not in self._named])
        while len(self._named) > _MAX_REMEMBERED:
            self._named.popitem(last=False)
        found: dict[str, Job] = {}
        for job in jobs:
            for decision in self._named.get(job.id, ()):
                # a list of all jobs can be forged: users may write lines of their own into a job's name
                if wanted.get(decision) == job.user_id and decision in _TAG.findall(self._show(job.id)):
                    found[decision] = job
        return found

    def _look_at(self, job_ids: Sequence[int]) -> None:
        """Learns which decisions these jobs name: one by one, or if they are many from a list of all."""
        named: dict[int, list[str]] = {job_id: [] for job_id in job_ids}
        if len(job_ids) <= _FEW:
            for job_id in job_ids:
                named[job_id] = _TAG.findall(self._show(job_id))
        else:
            for job_id, decision in _TAGGED_JOB.findall(
                self._run("scontrol", "--oneliner", "--all", "show", "job")
            ):
                named.get(int(job_id), []).append(decision)
        self._named |= named

    def _show(self, job_id: int) -> str:
        try:
            return self._run("scontrol", "--oneliner", "show", "job", str(job_id))
        except SlurmError as error:
            if "Invalid job id" in str(error):  # purged since it was listed
                return ""
            raise

    def job(self, job_id: int) -> Job | None:
        """See `Slurm.job`."""
        try:
            jobs = self._jobs("--jobs", str(job_id))
        except SlurmError as error:
            if "Invalid job id" in str(error):
                return None
            raise
        return next((job for job in jobs if job.id == job_id), None)

    def release(self, job_id: int, gres: str, not_before: int | None, admin_comment: str) -> None:
        """See `Slurm.release`."""
        start = "now"
        if not_before is not None and not_before > time.time():
            start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(not_before))
        self._run(
            "scontrol",
            "update",
            f"JobId={job_id}",
            f"Gres={gres}",
            f"StartTime={start}",
            f"AdminComment={admin_comment}",
        )

    def batch_run(self, job_id: int) -> BatchRun | None:
        """See `Slurm.batch_run`. Only squeue's fields, none of which is a text that users choose."""
        columns = ",".join(f"{name}:|" for name in _RUN_COLUMNS)
        which = ("--states=all", "--jobs", str(job_id))
        try:
            lines = self._run("squeue", "--noheader", *which, f"--Format={columns}").splitlines()
        except SlurmError as error:
            if "Invalid job id" in str(error):
                return None
            raise
        if not lines:
            return None
        state, user_id, partition, reason, requeue, restarts, task, *bonds, _end = lines[0].split("|")
        return BatchRun(
            state,
            reason,
            int(user_id),
            partition,
            requeue == "1",
            int(restarts),
            task != "N/A",
            any(bond not in ("(null)", "N/A") for bond in bonds),
        )

    def requeue(self, job_id: int) -> None:
        """See `Slurm.requeue`."""
        self._run("scontrol", "requeue", str(job_id))

    def resize(self, job_id: int, gres: str, admin_comment: str) -> None:
        """See `Slurm.resize`."""
        self._run("scontrol", "update", f"JobId={job_id}", f"Gres={gres}", f"AdminComment={admin_comment}")

    def error_file(self, job_id: int) -> Path | None:
        """See `Slurm.error_file`."""
        found = re.search(r"\bStdErr=(/\S+)", self._run("scontrol", "--oneliner", "show", "job", str(job_id)))
        return Path(found[1]) if found else None

    def arrays(self, job_ids: Sequence[int]) -> dict[int, int]:
        """See `Slurm.arrays`."""
        jobs = ",".join(map(str, job_ids))
        try:
            lines = self._run(
                "squeue", "--noheader", "--states=all", "--jobs", jobs, "--format=%A|%F"
            ).splitlines()
        except SlurmError as error:
            if "Invalid job id" in str(error):  # none of them is known any more
                return {}
            raise
        found = (tuple(map(int, line.split("|"))) for line in lines)
        return {job: array for job, array in found if job != array}

    def user_name(self) -> str:
        """See `Slurm.user_name`."""
        match = re.match(r"[^\s(]+", self._config("SlurmUser"))
        if match is None:
            raise SlurmError("scontrol show config names no SlurmUser")
        return match[0]

    def partitions(self) -> dict[str, Partition]:
        """See `Slurm.partitions`."""
        everywhere = "PerGPU" in self._config("JobDefaults")
        shards = shards_of_partitions(self._run("scontrol", "--oneliner", "--all", "show", "node"))
        found = {}
        for line in self._run("scontrol", "--oneliner", "--all", "show", "partition").splitlines():
            if match := re.match(r"PartitionName=(\S+)", line):
                per_gpu = everywhere or re.search(r"JobDefaults=\S*PerGPU", line) is not None
                found[match[1]] = Partition(per_gpu, frozenset(shards.get(match[1], ())))
        return found

    def _config(self, key: str) -> str:
        text = self._run("scontrol", "show", "config")
        match = re.search(rf"^{key}\s*=\s*(.*)$", text, re.MULTILINE)
        return match[1] if match else ""

    def _jobs(self, *which: str) -> list[Job]:
        lines = self._run("squeue", "--noheader", "--states=all", *which, "--format=%F|%U|%T").splitlines()
        jobs = {}
        for line in lines:
            job_id, user_id, state = line.split("|")
            jobs[int(job_id)] = Job(int(job_id), int(user_id), state)
        return list(jobs.values())

    def _run(self, *argv: str) -> str:
        try:
            done = subprocess.run(
                ["nice", "-n", "10", *argv],  # not before slurmctld
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                env=self._environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SlurmError(f"{argv[0]} did not answer within {self._timeout_s:g} s") from None
        except OSError as error:
            raise SlurmError(f"{argv[0]} cannot be run: {error.strerror}") from None
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise SlurmError(f"{argv[0]}: {lines[0][:300]}")
        return done.stdout


def shards_of_partitions(nodes: str) -> dict[str, set[float]]:
    """What one GPU has in shards, on the nodes that have any, by partition; from `scontrol -o show node`."""
    shards: dict[str, set[float]] = {}
    for line in nodes.splitlines():
        counts = {"gpu": 0, "shard": 0}
        gres = re.search(r" Gres=(\S+)", line)
        for name, count, unit in _GRES.findall(gres[1] if gres else ""):
            counts[name] += int(count) * _UNITS[unit]
        partitions = re.search(r" Partitions=(\S+)", line)
        if counts["gpu"] and counts["shard"] and partitions:
            for partition in partitions[1].split(","):
                shards.setdefault(partition, set()).add(counts["shard"] / counts["gpu"])
    return shards
