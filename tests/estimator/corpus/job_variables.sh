#!/bin/bash
# After the style of scripts that keep the results of each job apart.
#SBATCH --job-name=exp --output=%x-%j.out --gres=gpu:1
run=runs/$SLURM_JOB_NAME-$SLURM_JOB_ID
mkdir -p "$run"
python train.py --out "$run" --host "$SLURMD_NODENAME" --tasks $SLURM_NTASKS
