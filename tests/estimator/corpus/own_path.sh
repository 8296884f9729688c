#!/bin/bash
# After the style of fastcpc's launcher: a script runs as a copy, and asks Slurm where it lay.
#SBATCH --gres=gpu:1
script=$(scontrol show job $SLURM_JOB_ID | awk -F= '/Command=/{print $2}' | awk '{print $1}')
python train.py --config "$(dirname "$script")/config.yaml" --as "$(basename "$0")"
python train.py --beside "$(dirname "$0")"
