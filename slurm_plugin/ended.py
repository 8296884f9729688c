"""Run by slurmctld after a failed job (EpilogSlurmctld): returns when gpumemd has looked at the job.

Until then the job is completing, and gpumemd can have it run again (`slurm_plugin.requeue`).
"""

from __future__ import annotations

import contextlib
import os
import sys

import settings
from history import client

_TIMEOUT_S = 12.0  # gpumemd answers within 10 s


def main() -> int:
    """Asks about job $SLURM_JOB_ID; exit code 0, also where nobody answers."""
    with contextlib.suppress(settings.SettingsError, client.Unreachable, client.Refused):
        service = f"unix:{settings.load().service.user_socket}"
        client.get(service, "/v1/ended", {"job_id": os.environ.get("SLURM_JOB_ID")}, timeout_s=_TIMEOUT_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
