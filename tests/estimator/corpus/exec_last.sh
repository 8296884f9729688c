#!/bin/bash
# After the style of wrappers.
#SBATCH --gres=gpu:1
exec python train.py "$@"
