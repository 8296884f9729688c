#!/bin/sh
# After the style of portable scripts.
#SBATCH --gres=gpu:1
if [ -z "${SLURM_JOB_ID:-}" ]; then echo "not in a job"; exit 1; fi
exec python train.py
