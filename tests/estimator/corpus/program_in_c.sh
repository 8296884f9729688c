#!/bin/bash
# After the style of checks before a training.
#SBATCH --gres=gpu:2
count=$(python -c 'import torch; print(torch.cuda.device_count())')
echo "$count GPUs"
python train.py --gpus "$count"
