"""`gpumem-epilog`: run by slurmd after a job, as `Epilog=` in slurm.conf. Exits with 0 within a second.

`gpumem-epilog --flush` sends what still waits on this node; a systemd timer runs it (etc/gpumem-flush.timer).
"""

from __future__ import annotations

import os
import sys

from prolog.prolog import Ready, detached

_HELP = """usage: gpumem-epilog [--flush]

Run by slurmd after each job (slurm.conf: Epilog=). Ends the measurement of the job's GPU memory and sends it.
Always exits with 0 within a second; notes go to syslog. Settings: /etc/gpumem/gpumem.toml.

options:
  --flush     send the measurements that wait on this node, then exit: 0 all sent, 1 some still wait
  -h, --help  show this text
"""


def main() -> int:
    """The command `gpumem-epilog`."""
    arguments = sys.argv[1:]
    if arguments in (["-h"], ["--help"]):
        print(_HELP, end="")
        return 0
    if arguments == ["--flush"]:
        return _flush()
    if arguments:
        print(f"gpumem-epilog: {arguments[0]} is not understood; see gpumem-epilog --help", file=sys.stderr)
        return 2
    if os.environ.get("SLURM_JOB_GPUS"):
        detached(_work)
    return 0


def _work(ready: Ready) -> None:
    from prolog.end import end
    from prolog.node import job_of, this_node

    node = this_node()
    try:
        end(node, job_of(os.environ), ready)
    except Exception as error:
        node.log(f"epilog: job {os.environ.get('SLURM_JOB_ID')}: {error!r}")


def _flush() -> int:
    from prolog.node import this_node

    node = this_node()
    done = node.spool().flush(node.deliver())
    if done.set_aside:
        print(f"gpumem-epilog: {done.set_aside} files are no measurements: renamed to *.bad", file=sys.stderr)
    if done.left:
        folders = f"{node.settings.measurement.spool_dir} and {node.settings.measurement.fallback_dir}"
        print(f"gpumem-epilog: {done.left} measurements wait in {folders}: {done.reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
