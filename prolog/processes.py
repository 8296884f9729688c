"""Which process belongs to which Slurm job, read from /proc.

A PID alone names nothing for long: a process is its PID and its start time.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_MAX_ANCESTORS = 32
_MAX_ENVIRON = 4 * 1024**2

_CGROUP_JOB = re.compile(
    r"(?:^|/)slurm[^/]*/uid_\d+/job_(\d+)(?:/|$)"  # v1: /slurm/uid_1000/job_7/step_0/task_0
    r"|(?:^|/)(?:[^/]+_)?slurmstepd\.scope/job_(\d+)(?:/|$)"  # v2: /system.slice/slurmstepd.scope/job_7/…
)
# From Slurm 26.05 on the path carries the job's SLUID instead of its id (unless CgroupJobIdPaths is set)
_CGROUP_SLUID = re.compile(r"(?:^|/)(?:[^/]+_)?slurmstepd\.scope/(s[0-9A-HJKMNP-TV-Z]{13})(?:/|$)")


@dataclass(frozen=True)
class Process:
    """A process for good: no other of this boot is the same. `start_ticks`: field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int


def start_ticks(pid: int, proc: Path = PROC) -> int | None:
    """Clock ticks after boot at which the process started; None: there is no such process (or a dead one)."""
    fields = _stat(pid, proc)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def is_running(process: Process, proc: Path = PROC) -> bool:
    """Whether this very process still runs; a zombie does not."""
    return start_ticks(process.pid, proc) == process.start_ticks


def cgroup_job(text: str) -> int | None:
    """The job id in the text of /proc/PID/cgroup, which only root can bring there."""
    for path in _cgroup_paths(text):
        if match := _CGROUP_JOB.search(path):
            return int(match[1] or match[2])
    return None


def cgroup_sluid(text: str) -> str | None:
    """The SLUID in the text of /proc/PID/cgroup."""
    for path in _cgroup_paths(text):
        if match := _CGROUP_SLUID.search(path):
            return match[1]
    return None


class JobProcesses:
    """Tells the processes of one job, of the user `user_id`, from all others.

    A cgroup made by Slurm decides. Without one, SLURM_JOB_ID in the environment decides, of the process or of
    one it comes from; since users write their environment as they like, it counts only in processes of the
    job's own user.
    """

    def __init__(self, job_id: int, user_id: int | None, proc: Path = PROC) -> None:
        self._job_id = job_id
        self._user_id = user_id
        self._proc = proc
        self._sluid: str | None = None  # of this job, once one of its processes has told it
        self._known: set[Process] = set()

    def look_up(self, pid: int) -> tuple[Process, bool] | None:
        """The process that has this PID now, and whether it belongs to the job; None: it has ended."""
        started = start_ticks(pid, self._proc)
        if started is None:
            return None
        process = Process(pid, started)
        if process in self._known:
            return process, True
        belongs = self._belongs(pid)
        if start_ticks(pid, self._proc) != started:  # ended, or replaced, while we read
            return None
        if belongs:
            self._known.add(process)
        return process, belongs

    def _belongs(self, pid: int) -> bool:
        cgroup = self._read(pid, "cgroup")
        if (job_id := cgroup_job(cgroup)) is not None:
            return job_id == self._job_id
        sluid = cgroup_sluid(cgroup)
        if sluid is not None and self._sluid is not None:
            return sluid == self._sluid
        environment = self._job_environment(pid)
        if environment.get("SLURM_JOB_ID") != str(self._job_id):
            return False
        if sluid is not None:
            if environment.get("SLURM_JOB_SLUID", sluid) != sluid:
                return False
            self._sluid = sluid
        return True

    def _job_environment(self, pid: int) -> dict[str, str]:
        """Of the process, or its nearest ancestor, that names a job and belongs to the job's user."""
        for _ in range(_MAX_ANCESTORS):
            fields = _stat(pid, self._proc)
            if fields is None or pid <= 1:
                return {}
            if self._user_id is None or self._real_user(pid) == self._user_id:
                environment = _environment(self._read(pid, "environ"))
                if "SLURM_JOB_ID" in environment:
                    return environment
            pid = int(fields[1])
        return {}

    def _real_user(self, pid: int) -> int | None:
        for line in self._read(pid, "status").splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[1])
        return None

    def _read(self, pid: int, name: str) -> str:
        try:
            with (self._proc / str(pid) / name).open("rb") as file:
                return os.fsdecode(file.read(_MAX_ENVIRON))
        except OSError:
            return ""


def _stat(pid: int, proc: Path) -> list[str] | None:
    """The fields of /proc/PID/stat after the command's name, from the state (field 3) on."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name may hold spaces and brackets
    return fields if len(fields) > 19 else None


def _cgroup_paths(text: str) -> list[str]:
    paths = [line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2]
    # below user.slice users may name cgroups themselves
    return [path for path in paths if not path.startswith("/user.slice/")]


def _environment(block: str) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in block.split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs if name.startswith("SLURM_JOB_")}
