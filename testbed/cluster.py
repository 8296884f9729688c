"""A real Slurm on one machine: its own munged, slurmctld and a few slurmd with pretend GPUs, in one folder.

Nothing under `/etc` is read or written, the ports are picked free, so several clusters can run at once;
everything that was started ends with `stop`, or with this process should it die.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from testbed.users import BASE_PATH, User, existing

NVIDIA_MAJOR = 195
LONGEST_FOLDER = 60  # characters; sockets in it must stay within the 107 of an AF_UNIX address

T = TypeVar("T")


class ClusterError(Exception):
    """The cluster cannot do what was asked; the text says why and, for a daemon, shows the end of its log."""


class Cluster:
    """A running Slurm; a context manager.

    Args:
        folder: where everything lives, made if missing; default: a new temporary one, removed by `stop`.
        nodes: how many slurmd, named n1, n2, …
        gpus_per_node: pretend GPUs of each node.
        gpu_type: the GRES type, `gpu:TYPE:N`; empty: untyped.
        shards_per_gpu: shards that each GPU has; 0: no shards.
        cpus: CPUs of each node, made up.
        partitions: their names, the first is the default one; each has all nodes.
        lua: a job_submit.lua to load; None: no submit plug-in.
        controller_env: added to the environment of slurmctld.
        prolog, epilog, task_prolog: programs run on the nodes.
        extra_conf: lines added to slurm.conf.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        nodes: int = 2,
        gpus_per_node: int = 2,
        gpu_type: str = "a100",
        shards_per_gpu: int = 80,
        cpus: int = 8,
        partitions: Sequence[str] = ("gpu",),
        lua: Path | None = None,
        controller_env: Mapping[str, str] | None = None,
        prolog: Path | None = None,
        epilog: Path | None = None,
        task_prolog: Path | None = None,
        extra_conf: Iterable[str] = (),
    ) -> None:
        self.folder = folder or make_folder()
        self._remove_folder = folder is None
        self.nodes = tuple(f"n{i + 1}" for i in range(nodes))
        self.gpus_per_node = gpus_per_node
        self.gpu_type = gpu_type
        self.shards_per_gpu = shards_per_gpu
        self.cpus = cpus
        self.partitions = tuple(partitions)
        self.lua = lua
        self.controller_env = dict(controller_env or {})
        self.prolog = prolog
        self.epilog = epilog
        self.task_prolog = task_prolog
        self.extra_conf = tuple(extra_conf)
        self.conf = self.folder / "slurm.conf"
        self.logs = self.folder / "log"
        self.munge_socket = self.folder / "munge.sock"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def env(self) -> dict[str, str]:
        """What a Slurm command needs in its environment to reach this cluster."""
        return {"SLURM_CONF": str(self.conf)}

    # ---- life

    def start(self) -> Cluster:
        """Starts all daemons and waits until every node is idle: about half a second.

        Raises:
            ClusterError: not root, a program is missing, or a daemon does not come up.
        """
        _check_machine(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)  # job users pass through it
        for name, mode in (("log", 0o755), ("state", 0o700), ("dev", 0o755), ("jobs", 0o1777)):
            (self.folder / name).mkdir(exist_ok=True)
            (self.folder / name).chmod(mode)
        for minor in range(self.gpus_per_node):
            device = self.folder / "dev" / f"nvidia{minor}"
            if not device.exists():
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(NVIDIA_MAJOR, minor))
        self._write_conf(free_ports(1 + len(self.nodes)))
        try:
            self._start_munged()
            self.start_controller()
            for node in self.nodes:
                self.start_node(node)
            self._await("all nodes idle", self.idle, 60, "slurmctld")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends all jobs and daemons, and removes the folder if `start` was to choose it."""
        if "slurmctld" in self._daemons and self._command(["scontrol", "ping"], 3).returncode == 0:
            for partition in self.partitions:
                self._command(["scancel", "--quiet", "--partition", partition], 5)
            _poll(lambda: not self._command(["squeue", "-h"], 5).stdout.strip(), 8)
        _end([daemon for name, daemon in self._daemons.items() if name.startswith("slurmd.")])
        self._end_step_managers()
        _end([daemon for name, daemon in self._daemons.items() if not name.startswith("slurmd.")])
        self._daemons.clear()
        if self._remove_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_controller(self) -> None:
        """Starts slurmctld, which finds the state that an earlier one left."""
        command = [_program("slurmctld"), "-D", "-f", str(self.conf)]
        self._spawn("slurmctld", command, self.controller_env)
        self._await(
            "slurmctld to answer",
            lambda: self._command(["scontrol", "ping"], 5).returncode == 0,
            60,
            "slurmctld",
        )

    def start_node(self, node: str) -> None:
        """Starts the slurmd of `node`."""
        self._spawn(f"slurmd.{node}", [_program("slurmd"), "-D", "-N", node, "-f", str(self.conf)])

    def pids(self) -> dict[str, int]:
        """The process id of each daemon, by name: munged, slurmctld, slurmd.n1, …"""
        return {name: daemon.pid for name, daemon in self._daemons.items()}

    # ---- use

    def sbatch(
        self,
        script: str | Path,
        *,
        user: User | str = "root",
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        script_args: Sequence[str] = (),
    ) -> int:
        """Submits a batch script (text or path) as `user` from `cwd` (default: home), returns its id.

        Raises:
            ClusterError: sbatch refused; the text is its own.
        """
        done = self.try_sbatch(script, user=user, args=args, env=env, cwd=cwd, script_args=script_args)
        if done.returncode != 0:
            raise ClusterError(f"sbatch: {done.stderr.strip()}")
        return int(done.stdout.strip().split(";")[0])

    def try_sbatch(
        self,
        script: str | Path,
        *,
        user: User | str = "root",
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        script_args: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """As `sbatch`, but returns what the command did; the job id is its standard output."""
        account = existing(user) if isinstance(user, str) else user
        if isinstance(script, str):
            script = self._write_script(script)
        command = ["sbatch", "--parsable", *args, str(script), *script_args]
        return account.run(command, env=self.env | dict(env or {}), cwd=cwd)

    def job(self, job_id: int) -> dict[str, str]:
        """All that `scontrol -o show job -d` says about a job, by Slurm's own names.

        Raises:
            ClusterError: there is no such job.
        """
        return parse_job(self.scontrol("-o", "show", "job", "-d", str(job_id)))

    def jobs(self) -> list[dict[str, str]]:
        """As `job`, for every job that slurmctld knows."""
        lines = self.scontrol("-o", "show", "job", "-d", "-a").splitlines()
        return [parse_job(line) for line in lines if line.startswith("JobId=")]

    def output(self, job_id: int) -> str:
        """What the job has printed so far."""
        path = Path(self.job(job_id)["StdOut"])
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for(self, predicate: Callable[[], T], timeout_s: float = 60, what: str = "the condition") -> T:
        """Returns what `predicate` returns as soon as that is true.

        Raises:
            TimeoutError: it was not within `timeout_s` seconds.
        """
        value = _poll(predicate, timeout_s)
        if not value:
            raise TimeoutError(f"waited {timeout_s:g} s in vain for {what}")
        return value

    def wait_state(self, job_id: int, *states: str, timeout_s: float = 60) -> dict[str, str]:
        """The job, once its state is one of `states` (COMPLETED, RUNNING, …)."""
        wanted = " or ".join(states)

        def reached() -> dict[str, str] | None:
            job = self.job(job_id)
            return job if job["JobState"] in states else None

        found = self.wait_for(reached, timeout_s, f"job {job_id} to be {wanted}")
        assert found is not None
        return found

    def drained(self) -> dict[str, str]:
        """The nodes that are drained, draining or down, and Slurm's reason."""
        rows = self._command(["sinfo", "-h", "-N", "-o", "%N|%T|%E"], 10).stdout.splitlines()
        fields = (row.split("|", 2) for row in rows)
        return {node: reason for node, state, reason in fields if state.startswith(("drain", "down"))}

    def scontrol(self, *args: str) -> str:
        """Runs scontrol as root and returns what it prints.

        Raises:
            ClusterError: it failed; the text is its own.
        """
        done = self._command(["scontrol", *args], 20)
        if done.returncode != 0:
            raise ClusterError(f"scontrol {' '.join(args)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def scancel(self, job_id: int, *args: str) -> None:
        """Cancels a job, as root; does not wait for its end."""
        self._command(["scancel", *args, str(job_id)], 20)

    def idle(self) -> bool:
        """Whether no node has a job."""
        rows = self._command(
            ["sinfo", "-h", "-N", "-p", self.partitions[0], "-t", "idle", "-o", "%N"], 10
        ).stdout
        return len(rows.split()) == len(self.nodes)

    def log(self, name: str) -> str:
        """The log of a daemon: munged, slurmctld, slurmd.n1, …"""
        path = self.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # ---- within

    def _write_conf(self, ports: Sequence[int]) -> None:
        self.conf.write_text("\n".join(self._conf_lines(ports)) + "\n")
        (self.folder / "gres.conf").write_text("\n".join(self._gres_lines()) + "\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.folder / "plugstack.conf").write_text("")
        if self.lua:
            shutil.copyfile(self.lua, self.folder / "job_submit.lua")  # looked for beside slurm.conf

    def _conf_lines(self, ports: Sequence[int]) -> list[str]:
        host = socket.gethostname().split(".")[0]
        gres = f"gpu:{self.gpu_type}:{self.gpus_per_node}" if self.gpu_type else f"gpu:{self.gpus_per_node}"
        if self.shards_per_gpu:
            gres += f",shard:{self.gpus_per_node * self.shards_per_gpu}"
        programs = {
            "Prolog": self.prolog,
            "Epilog": self.epilog,
            "TaskProlog": self.task_prolog,
            "JobSubmitPlugins": "lua" if self.lua else None,
        }
        return [
            "ClusterName=testbed",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            f"AuthInfo=socket={self.munge_socket}",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool.%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd.%n.pid",
            f"SlurmctldLogFile={self.logs}/slurmctld.log",
            f"SlurmdLogFile={self.logs}/slurmd.%n.log",
            "SlurmctldDebug=debug",
            "SlurmdDebug=debug",
            "MpiDefault=none",
            "ReturnToService=2",
            "SlurmdParameters=config_overrides",  # the CPUs and memory below are made up
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            "GresTypes=" + ("gpu,shard" if self.shards_per_gpu else "gpu"),
            "SchedulerType=sched/backfill",
            "SchedulerParameters=sched_interval=2,sched_min_interval=50000,bf_interval=2,batch_sched_delay=0",
            "SlurmctldTimeout=30",
            "SlurmdTimeout=30",
            "InactiveLimit=0",
            "KillWait=2",
            "MinJobAge=3600",  # an ended job can still be looked at
            "MessageTimeout=15",
            "CompleteWait=0",
            "JobAcctGatherType=jobacct_gather/none",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "AccountingStorageType=accounting_storage/none",
            "PrologFlags=Alloc",
            *(f"{key}={value}" for key, value in programs.items() if value),
            *self.extra_conf,
            *(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={self.cpus} "
                f"RealMemory=64000 Gres={gres} State=UNKNOWN"
                for node, port in zip(self.nodes, ports[1:], strict=True)
            ),
            *(
                f"PartitionName={name} Nodes={','.join(self.nodes)} State=UP MaxTime=INFINITE "
                f"Default={'YES' if name == self.partitions[0] else 'NO'}"
                for name in self.partitions
            ),
        ]

    def _gres_lines(self) -> list[str]:
        lines = []
        for node in self.nodes:
            for minor in range(self.gpus_per_node):
                file = self.folder / "dev" / f"nvidia{minor}"
                kind = f"Type={self.gpu_type} " if self.gpu_type else ""
                lines.append(f"NodeName={node} Name=gpu {kind}File={file}")
                if self.shards_per_gpu:
                    lines.append(f"NodeName={node} Name=shard Count={self.shards_per_gpu} File={file}")
        return lines

    def _start_munged(self) -> None:
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {"key-file": key, "socket": self.munge_socket, "pid-file": self.folder / "munged.pid"}
        files |= {"log-file": self.logs / "munged.log", "seed-file": self.folder / "munge.seed"}
        options = [f"--{option}={path}" for option, path in files.items()]
        self._spawn("munged", [_program("munged"), "--foreground", "--force", "--num-threads=4", *options])
        ask = ["munge", "-S", str(self.munge_socket), "-n"]
        self._await("munged to answer", lambda: self._command(ask, 5).returncode == 0, 60, "munged")

    def _spawn(self, name: str, command: list[str], env: Mapping[str, str] | None = None) -> None:
        # setpriv: a daemon ends when this process is killed and `stop` never runs
        with (self.logs / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                [_program("setpriv"), "--pdeathsig", "TERM", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={"PATH": BASE_PATH, "LANG": "C.UTF-8", **self.env, **dict(env or {})},
                start_new_session=True,
            )

    def _await(self, what: str, ready: Callable[[], bool], timeout_s: float, daemon: str) -> None:
        def ready_or_dead() -> bool:
            return ready() or any(process.poll() is not None for process in self._daemons.values())

        _poll(ready_or_dead, timeout_s)
        for name, process in self._daemons.items():
            if process.poll() is not None:
                raise ClusterError(f"{name} ended with status {process.returncode}\n{self._tail(name)}")
        if not ready():
            raise ClusterError(f"waited {timeout_s:g} s in vain for {what}\n{self._tail(daemon)}")

    def _tail(self, name: str, lines: int = 20) -> str:
        out = (self.logs / f"{name}.out").read_text(errors="replace").splitlines()
        return "\n".join(self.log(name).splitlines()[-lines:] + out[-lines:])

    def _command(self, command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        env = {"PATH": BASE_PATH, "LANG": "C.UTF-8", **self.env}
        try:
            return subprocess.run(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(
                command, 124, "", f"{command[0]}: no answer within {timeout_s:g} s"
            )

    def _write_script(self, text: str) -> Path:
        path = self.folder / "jobs" / f"{secrets.token_hex(4)}.sh"
        path.write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}\n")
        path.chmod(0o644)
        return path

    def _end_step_managers(self) -> None:
        # a slurmstepd outlives its slurmd; ours name this cluster's slurm.conf in their own environment
        mark = f"SLURM_CONF={self.conf}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "comm").read_text() == "slurmstepd\n" and mark in (
                    process / "environ"
                ).read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue


def make_folder(prefix: str = "gpumem-") -> Path:
    """A new folder under the temp folder that everybody can enter, with a path short enough for sockets."""
    parent = Path(tempfile.gettempdir())
    if len(str(parent)) + len(prefix) + 8 > LONGEST_FOLDER or not _all_can_enter(parent):
        parent = Path("/tmp")
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    folder.chmod(0o755)
    return folder


def parse_job(line: str) -> dict[str, str]:
    """Splits one line of `scontrol -o show job`; a value may hold blanks (a comment, a command)."""
    fields = re.split(r"(?:^|\s)(?=[A-Z][A-Za-z/:_]*=)", line.strip())
    pairs = (field.partition("=") for field in fields if field)
    return {key: value.strip() for key, _, value in pairs}


def free_ports(count: int) -> list[int]:
    """TCP ports that nobody listens on, from below the range out of which the kernel serves clients."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(12000, 32000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def _all_can_enter(folder: Path) -> bool:
    return all(path.stat().st_mode & stat.S_IXOTH for path in (folder, *folder.resolve().parents))


def _check_machine(folder: Path) -> None:
    if os.geteuid() != 0:
        raise ClusterError("the testbed needs root: it makes device files and runs jobs as other users")
    if len(str(folder)) > LONGEST_FOLDER:
        raise ClusterError(
            f"{folder}: the path is longer than {LONGEST_FOLDER} characters; choose a shorter one"
        )
    if not _all_can_enter(folder.parent):
        raise ClusterError(
            f"{folder}: job users cannot enter a folder above it; choose another place, such as /tmp"
        )


def _program(name: str) -> str:
    path = shutil.which(name, path=BASE_PATH)
    if path is None:
        raise ClusterError(f"{name} is not installed; run testbed/setup.sh")
    return path


def _poll(predicate: Callable[[], T], timeout_s: float) -> T:
    """What `predicate` returned last: something true, or its answer when the time was up."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value or time.monotonic() > deadline:
            return value
        time.sleep(0.03)


def _end(processes: Iterable[subprocess.Popen[bytes]], patience_s: float = 5) -> None:
    left = list(processes)
    for process in left:
        process.terminate()
    for process in left:
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
