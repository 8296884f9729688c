#!/bin/bash
# After the style of scripts that stop before Slurm does.
#SBATCH --gres=gpu:1
timeout --signal=INT 3h stdbuf -oL -eL python train.py
