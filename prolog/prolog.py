"""`gpumem-prolog`: run by slurmd before a job, as `Prolog=` in slurm.conf. Exits with 0 within a second.

The command itself only starts a detached process and waits for it a little. That process writes the job down,
asks NVML, and becomes the job's sampler. Whatever hangs hangs there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

Ready = Callable[[], None]
"""Tells the command, and so slurmd, that it need not wait any longer."""

DEADLINE_S = 0.85
"""From the start of the process, the interpreter's own included."""

_HELP = """usage: gpumem-prolog

Run by slurmd before each job (slurm.conf: Prolog=). Starts measuring the job's GPU memory.
Always exits with 0 within a second; notes go to syslog. Settings: /etc/gpumem/gpumem.toml.
"""


def main() -> int:
    """The command `gpumem-prolog`."""
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(_HELP, end="")
        return 0
    if os.environ.get("SLURM_JOB_GPUS"):
        detached(_work)
    return 0


def detached(work: Callable[[Ready], None]) -> None:
    """Does `work` in a detached process, and waits for it until the deadline at most; never fails."""
    try:
        from prolog import detach

        detach.start(work, DEADLINE_S)
    finally:
        os._exit(0)


def _work(ready: Ready) -> None:
    from prolog.begin import begin
    from prolog.node import job_of, this_node

    node = this_node()
    try:
        begin(node, job_of(os.environ), ready)
    except Exception as error:
        node.log(f"prolog: job {os.environ.get('SLURM_JOB_ID')}: {error!r}")


if __name__ == "__main__":
    sys.exit(main())
