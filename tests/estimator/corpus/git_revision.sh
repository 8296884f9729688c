#!/bin/bash
# After the style of scripts that note what they ran.
#SBATCH --gres=gpu:1
echo "revision $(git rev-parse --short HEAD 2> /dev/null || echo unknown)"
git pull --ff-only
nvidia-smi
nvidia-smi --query-gpu=name,memory.total --format=csv,noheader
python train.py --gpu "$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n1)"
