#!/bin/bash
# After the style of scripts started from elsewhere.
#SBATCH -D sub
#SBATCH --gres=gpu:1
python ../train.py --here "$(basename "$PWD")"
