#!/bin/bash
# After the style of Mila's older documentation.
#SBATCH --gres=gpu:1
eval "$(conda shell.bash hook)"
conda activate pytorch
python train.py
