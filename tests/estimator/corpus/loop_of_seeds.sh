#!/bin/bash
# After the style of paper repositories: all seeds in one job.
#SBATCH --gres=gpu:1
for seed in 1 2 3; do
    python train.py --seed $seed
done
