#!/bin/bash
# After the style of recent Slurm: trackable resources of a task.
#SBATCH -n 2 --tres-per-task=cpu:4,gres/gpu:1
srun python train.py
