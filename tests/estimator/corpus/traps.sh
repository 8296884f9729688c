#!/bin/bash
# After the style of scripts that clean up behind them.
#SBATCH --gres=gpu:1 --signal=B:USR1@120
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'echo requeue; scontrol requeue $SLURM_JOB_ID' USR1
python train.py --scratch work &
wait $!
