#!/bin/bash
# After the style of sweeps in university HPC examples: one line of a file for each task.
#SBATCH --array=2-9%2
#SBATCH --gres=gpu:1
#SBATCH --output=logs/%A_%a.out
line=$(sed -n "${SLURM_ARRAY_TASK_ID}p" configs/sweep.txt)
python train.py $line --seed "$SLURM_ARRAY_TASK_ID"
