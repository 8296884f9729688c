#!/bin/bash
# After the style of hyperparameter sweeps on Compute Canada clusters.
#SBATCH --array=0-5
#SBATCH --gpus-per-node=v100l:1
#SBATCH --account=def-someone
rates=(1e-3 1e-4 1e-5)
seeds=(1 2)
rate=${rates[$((SLURM_ARRAY_TASK_ID % 3))]}
seed=${seeds[$((SLURM_ARRAY_TASK_ID / 3))]}
python train.py --lr "$rate" --seed "$seed"
