#!/bin/bash
# After the style of scripts that do without activation.
#SBATCH --gres=gpu:1
conda run -n pytorch --no-capture-output python train.py
