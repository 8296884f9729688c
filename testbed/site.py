"""A whole site with gpumem in one folder: Slurm, pretend GPU nodes, gpumemd, prolog, epilog, the history."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import slurm_plugin
from estimator import catalog
from history import client
from history.wire import JobRecord, Jobs
from testbed import nodes, users
from testbed.cluster import Cluster, ClusterError, make_folder
from testbed.users import BASE_PATH, User

SHARD_MIB = 1024

Value = str | int | float | bool | Sequence[str]
Sections = Mapping[str, Mapping[str, Value]]


class SiteError(Exception):
    """The site cannot start; the text says what to do."""


class Site:
    """A cluster with gpumem; a context manager. Needs `testbed/setup.sh` to have been run.

    Args:
        folder: where everything lives, made if missing; default: a new temporary one, removed by `stop`.
        gpu: the model of the nodes' GPUs, by its name in the catalogue.
        budget_s: how long a job is held for its trace, in seconds.
        settings: changes to gpumem.toml, by section and key.
        estimate_command: replaces `gpumem estimate` in gpumemd.
        node_env: added to the environment of prolog and epilog.
        extra_conf: lines added to slurm.conf.
    """

    partition = "gpu"

    def __init__(
        self,
        folder: Path | None = None,
        *,
        nodes: int = 2,
        gpus_per_node: int = 2,
        gpu: str = "a100-80gb",
        shards_per_gpu: int = 80,
        budget_s: int = 120,
        settings: Sections | None = None,
        estimate_command: str | None = None,
        node_env: Mapping[str, str] | None = None,
        extra_conf: Sequence[str] = (),
    ) -> None:
        self.folder = folder or make_folder()
        self._remove_folder = folder is None
        self.config = self.folder / "gpumem.toml"
        self.user_socket = self.folder / "gpumem.sock"
        self._submit_socket = self.folder / "private" / "submit.sock"
        self.gpu = catalog.load().find(gpu)
        self.shards_per_gpu = shards_per_gpu
        self._budget_s = budget_s
        self._settings = settings or {}
        self._estimate_command = estimate_command
        self._node_env = dict(node_env or {})
        self._service: subprocess.Popen[bytes] | None = None
        bin_folder = self.folder / "bin"
        self.cluster = Cluster(
            self.folder / "slurm",
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            shards_per_gpu=shards_per_gpu,
            partitions=(self.partition,),
            lua=Path(slurm_plugin.__path__[0]) / "job_submit.lua",
            controller_env={"GPUMEM_SUBMIT_SOCKET": str(self._submit_socket)},
            prolog=bin_folder / "prolog",
            epilog=bin_folder / "epilog",
            task_prolog=bin_folder / "task_prolog",
            extra_conf=extra_conf,
        )

    # ---- life

    def start(self) -> Site:
        """Starts everything and waits until it answers.

        Raises:
            SiteError, ClusterError: something does not start; the text says what.
        """
        self._check_installation()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        (self.folder / "home").mkdir(mode=0o755)
        (self.folder / "private").mkdir(mode=0o700)
        self._write_nodes()
        self.config.write_text(toml(self._sections(self.folder / "node")))
        try:
            self.cluster.start()
            self.start_service()  # knows from its first moment what only a running slurmctld can say
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends all jobs and every process that belongs to the site."""
        self.cluster.stop()
        self._end_samplers()
        self.stop_service()
        if self._remove_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Site:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_service(self) -> None:
        """Starts gpumemd and waits until it answers.

        Raises:
            SiteError: it does not; the text shows its log.
        """
        env = {"PATH": BASE_PATH, "LANG": "C.UTF-8", **self.cluster.env}
        if self._estimate_command:
            env["GPUMEM_ESTIMATE_COMMAND"] = self._estimate_command
        with (self.folder / "gpumemd.log").open("ab") as log:
            # setpriv: it ends when this process is killed and `stop` never runs
            self._service = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", str(commands() / "gpumemd"), "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        deadline = time.monotonic() + 60
        while not self._service_answers():
            if self._service.poll() is not None or time.monotonic() > deadline:
                raise SiteError(f"gpumemd does not start:\n{self.service_log()}")
            time.sleep(0.03)

    def stop_service(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """Ends gpumemd and waits for its end; no error if it has ended."""
        service, self._service = self._service, None
        if service is not None:
            service.send_signal(with_signal)
            try:
                service.wait(10)
            except subprocess.TimeoutExpired:
                service.kill()
                service.wait()

    def kill_service(self) -> None:
        """Ends gpumemd as a crash would (SIGKILL)."""
        self.stop_service(signal.SIGKILL)

    # ---- use

    def user(self, name: str) -> User:
        """The ordinary user `name`, with a home folder of their own in this site."""
        return users.ensure(name, self.folder / "home")

    def history(self) -> list[JobRecord]:
        """All jobs that gpumemd knows, newest first; asked of the service, as root.

        Raises:
            history.client.Unreachable: the service does not run.
        """
        answer = client.get(f"unix:{self.user_socket}", "/v1/jobs", {"limit": 1000}, timeout_s=5)
        return Jobs.model_validate(answer).jobs

    def record(self, job_id: int) -> JobRecord | None:
        """The history of one job, if it has any yet."""
        return next((row for row in self.history() if row.job_id == job_id), None)

    def node_folder(self, node: str) -> Path:
        """Where the pretend node `node` keeps its GPUs, its spool and its log."""
        return self.folder / "node" / node

    def service_log(self) -> str:
        """What gpumemd has logged so far."""
        path = self.folder / "gpumemd.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # ---- within

    def _check_installation(self) -> None:
        missing = [
            path
            for path in (commands() / "gpumemd", nodes.library_folder() / "libgpumem_cuda.so")
            if not path.exists()
        ]
        if missing:
            raise SiteError(f"{missing[0]} is missing; run testbed/setup.sh")
        if os.geteuid() == 0 and not users.can_read(users.existing("nobody"), nodes.tracer_folder()):
            raise SiteError(f"ordinary users cannot read {nodes.tracer_folder()}; run testbed/setup.sh")

    def _write_nodes(self) -> None:
        folder = self.folder / "node"
        folder.mkdir()
        for name in self.cluster.nodes:
            nodes.make_node(folder / name, self.gpu, self.cluster.gpus_per_node)
            (folder / name / "gpumem.toml").write_text(toml(self._sections(folder / name)))
        nodes.write_programs(self.folder / "bin", folder, commands(), extra_env=self._node_env)

    def _sections(self, node: Path) -> dict[str, dict[str, Value]]:
        sections: dict[str, dict[str, Value]] = {
            "service": {
                "submit_socket": str(self._submit_socket),
                "user_socket": str(self.user_socket),
                "state_dir": str(self.folder / "state"),
            },
            "history": {"url": f"sqlite:///{self.folder}/private/history.db"},
            "defer": {"budget_s": self._budget_s},
            "slurm": {
                "conf": str(self.cluster.conf),
                "munge_socket": str(self.cluster.munge_socket),
            },
            "estimate": {"shard_mib": SHARD_MIB},
            "measurement": {
                "service": f"unix:{self.user_socket}",
                "spool_dir": str(node / "spool"),
                "fallback_dir": str(node / "run" / "spool"),
                "run_dir": str(node / "run" / "jobs"),
            },
            f"partitions.{self.partition}": {"gpu": self.gpu.key, "shards_per_gpu": self.shards_per_gpu},
        }
        for name, changes in self._settings.items():
            sections[name] = {**sections.get(name, {}), **changes}
        return sections

    def _service_answers(self) -> bool:
        try:
            health = client.get(f"unix:{self.user_socket}", "/v1/health", {}, timeout_s=1)
        except (client.Unreachable, client.Refused):
            return False
        return bool(health["knows_slurm"])  # jobs pass until then

    def _end_samplers(self) -> None:
        # detached from everything; one that outlives its job names this site's folder on its command line
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes() + b"\0" + (process / "environ").read_bytes()
                if f"{self.folder}/node/".encode() in words and int(process.name) != os.getpid():
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue


def commands() -> Path:
    """The folder of this installation's commands, by a path that ordinary users can take."""
    return Path(sys.prefix).resolve() / "bin"


def toml(sections: Sections) -> str:
    """The text of a TOML file with these sections; strings, numbers, booleans and lists of strings."""
    lines = []
    for name, values in sections.items():
        lines.append(f"[{name}]")
        # such JSON values are TOML values too
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join([*lines, ""])


__all__ = ["ClusterError", "Site", "SiteError", "commands", "toml"]
