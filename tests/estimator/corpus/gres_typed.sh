#!/bin/bash
# After the style of ETH Zurich's Euler examples.
#SBATCH --gres=gpu:rtx_3090:2
#SBATCH --mem-per-cpu=4g -n 8
python train.py --devices $(nvidia-smi -L | wc -l)
