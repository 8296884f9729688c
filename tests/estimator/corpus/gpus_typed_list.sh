#!/bin/bash
# After the style of clusters with several kinds of GPU.
#SBATCH --gpus=a100:4
#SBATCH --ntasks-per-gpu=1
srun --label python -u train.py
