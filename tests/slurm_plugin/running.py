"""A real gpumemd, whose estimates come at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from history import client
from testbed.users import open_copy

PACKAGES = Path(__file__).parents[2]
PLUGIN = PACKAGES / "slurm_plugin" / "job_submit.lua"
ESTIMATE = Path(__file__).with_name("fake_estimate.py")
SHARDS = 80


class Gpumemd:
    """A gpumemd of its own folder; `start` and `kill` as often as a test likes, the database stays."""

    def __init__(self, folder: Path, conf: Path | None = None, munge_socket: Path | None = None) -> None:
        self.folder = folder
        self.submit_socket = folder / "submit.sock"
        self.user_socket = folder / "gpumem.sock"
        self.config = folder / "gpumem.toml"
        self.database = folder / "history.db"
        self._conf = conf
        self._munge_socket = munge_socket
        self._process: subprocess.Popen[bytes] | None = None
        self.plain = False
        """Whether it runs with the usual settings."""
        open_copy(ESTIMATE, folder).rename(folder / "estimate.py")  # where ordinary users can read it

    def start(
        self,
        *,
        budget_s: int = 60,
        enabled: bool = True,
        listen: str = "",
        observe: bool = False,
        shards: int = SHARDS,
    ) -> Gpumemd:
        slurm = {"conf": self._conf, "munge_socket": self._munge_socket}
        self.config.write_text(
            f'[service]\nsubmit_socket = "{self.submit_socket}"\nuser_socket = "{self.user_socket}"\n'
            f'state_dir = "{self.folder}/state"\nlisten = "{listen}"\ntracers = 2\n'
            f'[history]\nurl = "sqlite:///{self.database}"\n'
            f"[defer]\nbudget_s = {budget_s}\nenabled = {str(enabled).lower()}\n"
            f'[partitions.gpu]\ngpu = "a100-80gb"\nshards_per_gpu = {shards}\nobserve = {str(observe).lower()}\n'
            f'[partitions.off]\nenabled = false\ngpu = "a100-80gb"\nshards_per_gpu = {SHARDS}\n[slurm]\n'
            + "".join(f'{key} = "{value}"\n' for key, value in slurm.items() if value)
        )
        environment = {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONPATH": str(PACKAGES),
            "GPUMEM_ESTIMATE_COMMAND": f"/usr/bin/python3 -I {self.folder}/estimate.py",
            "SECRET_OF_THE_SERVICE": "x",
        }
        command = [sys.executable, "-m", "slurm_plugin.daemon", "--config", str(self.config)]
        with (self.folder / "gpumemd.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self.wait(self.healthy, "gpumemd to answer")
        self.wait(
            lambda: self.get("/v1/health")["knows_slurm"], "gpumemd to know Slurm"
        )  # jobs pass until then
        self.plain = (budget_s, enabled, listen, observe, shards) == (60, True, "", False, SHARDS)
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Ends it by a signal; returns its exit status."""
        if self._process is None:
            return 0
        self._process.send_signal(number)
        status = self._process.wait(60)
        self._process, self.plain = None, False
        return status

    def healthy(self) -> bool:
        try:
            return self.get("/v1/health")["status"] == "ok"
        except client.Unreachable:
            return False

    def get(self, path: str, **query: Any) -> Any:
        return client.get(f"unix:{self.user_socket}", path, query, timeout_s=5)

    def log(self) -> str:
        return (self.folder / "gpumemd.log").read_text()

    def jobs(self) -> dict[int, dict[str, Any]]:
        """The history's rows, by job id."""
        return {job["job_id"]: job for job in self.get("/v1/jobs", limit=1000)["jobs"] if "job_id" in job}

    def wait_state(self, job_id: int, *states: str, timeout_s: float = 60) -> dict[str, Any]:
        """The history's row of a job, once its state is one of these."""

        def reached() -> dict[str, Any] | None:
            row = self.jobs().get(job_id)
            return row if row and row["state"] in states else None

        return self.wait(reached, f"job {job_id} to be {' or '.join(states)}", timeout_s)

    def wait(self, ready: Any, what: str, timeout_s: float = 60) -> Any:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if value := ready():
                return value
            time.sleep(0.05)
        raise AssertionError(f"waited {timeout_s} s in vain for {what}\n{self.log()[-3000:]}")
