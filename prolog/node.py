"""What prolog and epilog have in common: the job in the environment, the settings, and where notes go."""

from __future__ import annotations

import os
import re
import socket
import syslog
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from settings import Settings, SettingsError, load

if TYPE_CHECKING:
    from prolog.spool import Deliver, Spool

_GPU_NAME = re.compile(r"(?:\d{1,4}|(?:GPU|MIG)-[A-Za-z0-9/-]{1,80})")
_MAX_LOG_BYTES = 1024**2


@dataclass(frozen=True)
class Job:
    """The job as slurmd names it to prolog and epilog; `gpus`: indices or UUIDs, as Slurm gives them."""

    job_id: int
    user_id: int | None
    cluster: str | None
    node: str
    gpus: tuple[str, ...]
    exit_status: int | None


def job_of(environment: Mapping[str, str]) -> Job:
    """Reads the job from the environment.

    Raises:
        ValueError: SLURM_JOB_ID is no job id.
    """
    return Job(
        job_id=int(environment.get("SLURM_JOB_ID", "")),
        user_id=_integer(environment.get("SLURM_JOB_UID")),
        cluster=environment.get("SLURM_CLUSTER_NAME") or None,
        node=environment.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0],
        gpus=_gpu_names(environment),
        exit_status=_integer(environment.get("SLURM_JOB_EXIT_CODE")),
    )


@dataclass(frozen=True)
class Node:
    """The settings of this node, and a quiet place for notes."""

    settings: Settings
    problems: tuple[str, ...] = ()

    @property
    def log_path(self) -> Path:
        """Where notes go on a node without syslog."""
        return self.settings.measurement.run_dir.parent / "node.log"

    def log(self, text: str) -> None:
        """A note to syslog, else to a small file; never fails."""
        try:
            if os.path.exists("/dev/log"):  # noqa: PTH110
                syslog.openlog("gpumem", syslog.LOG_PID, syslog.LOG_DAEMON)
                syslog.syslog(syslog.LOG_WARNING, text)
            else:
                _append(self.log_path, text)
        except (OSError, ValueError):
            return

    def spool(self) -> Spool:
        """Where measurements wait."""
        from prolog.spool import Spool

        return Spool((self.settings.measurement.spool_dir, self.settings.measurement.fallback_dir))

    def deliver(self) -> Deliver:
        """How measurements get to the service."""
        from prolog.delivery import to_service

        measurement = self.settings.measurement
        return to_service(measurement.service, measurement.timeout_s, self.settings.slurm.munge_socket)


def this_node() -> Node:
    """The node with its settings; a configuration that cannot be used must not cost measurements."""
    try:
        return Node(load())
    except SettingsError as error:
        node = Node(Settings(), (f"settings: {error}",))
        node.log(f"defaults are used: {error}")
        return node


def _gpu_names(environment: Mapping[str, str]) -> tuple[str, ...]:
    """UUIDs where Slurm gives them (always for MIG), else indices."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if not all(name.startswith(("GPU-", "MIG-")) for name in visible):
        visible = environment.get("SLURM_JOB_GPUS", "").split(",")
    return tuple(dict.fromkeys(name for name in visible if _GPU_NAME.fullmatch(name)))


def _integer(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?\d{1,18}", text) else None


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        if file.tell() > _MAX_LOG_BYTES:
            file.truncate(0)
        file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} gpumem[{os.getpid()}]: {text}\n")
