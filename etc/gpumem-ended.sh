#!/bin/sh
# For EpilogSlurmctld= in slurm.conf: a failed job counts as completing until gpumemd has seen whether it ran out
# of GPU memory, for some seconds at most; as long as that lasts it can be had to run again on a whole GPU.
# A site with an EpilogSlurmctld of its own calls this one from it.
# Python is only started where that can matter: slurmctld runs this after every job of the cluster.
[ "${SLURM_JOB_EXIT_CODE:-0}" != 0 ] && [ "${SLURM_JOB_RESTART_COUNT:-0}" = 0 ] || exit 0
[ -z "$SLURM_ARRAY_JOB_ID" ] || exit 0
/usr/bin/grep -qF -e "[partitions.$SLURM_JOB_PARTITION]" -e "[partitions.\"$SLURM_JOB_PARTITION\"]" \
    "${GPUMEM_CONFIG:-/etc/gpumem/gpumem.toml}" 2>/dev/null || exit 0
/usr/bin/timeout --signal=KILL 15 "${GPUMEM_BIN:-/opt/gpumem/bin}/python" -I -m slurm_plugin.ended </dev/null >/dev/null 2>&1
exit 0
