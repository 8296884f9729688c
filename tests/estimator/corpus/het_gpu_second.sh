#!/bin/bash
# After the style of heterogeneous jobs in Slurm's own documentation.
#SBATCH --ntasks=1 --mem=4G
#SBATCH hetjob
#SBATCH --nodes=2 --ntasks-per-node=4 --gres=gpu:4
srun --het-group=0 python prepare.py : --het-group=1 python train.py
