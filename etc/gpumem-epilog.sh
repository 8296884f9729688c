#!/bin/sh
# For Epilog= in slurm.conf: runs gpumem-epilog, and exits with 0 even if gpumem cannot be started at all
# (Python upgraded, file system gone). An epilog that fails drains the node.
/usr/bin/timeout --signal=KILL 2 "${GPUMEM_BIN:-/opt/gpumem/bin}/gpumem-epilog" </dev/null >/dev/null 2>&1
exit 0
