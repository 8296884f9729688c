#!/bin/bash
# After the style of Jülich and EPFL users' scripts with mamba.
#SBATCH --gres=gpu:1
eval "$(mamba shell hook --shell bash)"
mamba activate env
python train.py
