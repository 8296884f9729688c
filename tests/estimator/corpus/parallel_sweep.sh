#!/bin/bash
# After the style of sweeps by GNU parallel.
#SBATCH --gres=gpu:1
parallel -j 1 python train.py --seed ::: 1 2
