#!/bin/sh
# For EpilogSlurmctld= in slurm.conf: a failed job counts as completing until gpumemd has seen whether it ran out
# of GPU memory, for some seconds at most; as long as that lasts it can be had to run again on a whole GPU.
# A site with an EpilogSlurmctld of its own calls this one from it.
[ "${SLURM_JOB_EXIT_CODE:-0}" != 0 ] && [ "${SLURM_JOB_RESTART_COUNT:-0}" = 0 ] || exit 0
/usr/bin/timeout --signal=KILL 15 "${GPUMEM_BIN:-/opt/gpumem/bin}/python" -I -m slurm_plugin.ended </dev/null >/dev/null 2>&1
exit 0
