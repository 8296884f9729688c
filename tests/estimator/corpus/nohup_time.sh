#!/bin/bash
# After the style of people who come from a workstation.
#SBATCH --gres=gpu:1
time nohup python train.py --epochs 90 > out.txt 2>&1
