#!/bin/bash
# After the style of NERSC's checkpoint-restart and Jean Zay's requeue examples.
#SBATCH --gres=gpu:1 --requeue --time=20:00:00 --signal=B:TERM@60
max=${SLURM_RESTART_COUNT:-0}
handler() { scontrol requeue "${SLURM_JOB_ID}"; exit 0; }
trap handler TERM
srun python train.py --resume auto --attempt "$max" &
wait
if ! grep -q done state.txt 2> /dev/null; then sbatch --dependency=afterany:$SLURM_JOB_ID again.sh; fi
