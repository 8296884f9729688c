#!/bin/bash
# After the style of sweeps by xargs.
#SBATCH --gres=gpu:1
printf '%s\n' 1e-3 1e-4 | xargs -I{} -P1 python train.py --lr {}
