#!/bin/bash
# After the style of scripts with micromamba.
#SBATCH --gres=gpu:1
micromamba run -n env python train.py
