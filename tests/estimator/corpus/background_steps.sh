#!/bin/bash
# After the style of Slurm's documentation: steps side by side.
#SBATCH -n 2 --gres=gpu:2
srun --exact -n1 --gres=gpu:1 python train.py --part 0 &
srun --exact -n1 --gres=gpu:1 python train.py --part 1 &
wait
