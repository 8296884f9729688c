#!/bin/bash
# After the style of Mila's current documentation.
#SBATCH --ntasks=1 --gpus-per-task=l40s:1 --cpus-per-task=4 --mem-per-gpu=16G
set -e
echo "Date: $(date) on $(hostname)"
srun uv run python train.py
