#!/bin/bash
# After the style of older heterogeneous jobs (packjob).
#SBATCH -n 1 -c 2
#SBATCH packjob
#SBATCH -N 1 --gres=gpu:2
echo "$SLURM_JOB_NUM_NODES_HET_GROUP_1 node with GPUs of $SLURM_HET_SIZE components"
srun --pack-group=1 python train.py
