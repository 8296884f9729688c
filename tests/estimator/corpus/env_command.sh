#!/bin/bash
# After the style of scripts that set variables with env.
#SBATCH --gres=gpu:1
env -u DEBUG MODE=fast PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py
