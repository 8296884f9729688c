#!/bin/sh
# For Prolog= in slurm.conf: runs gpumem-prolog, and exits with 0 even if gpumem cannot be started at all
# (Python upgraded, file system gone). A prolog that fails drains the node.
/usr/bin/timeout --signal=KILL 2 "${GPUMEM_BIN:-/opt/gpumem/bin}/gpumem-prolog" </dev/null >/dev/null 2>&1
exit 0
