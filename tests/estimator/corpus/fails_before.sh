#!/bin/bash
# After the style of what goes wrong: the script ends before it trains.
#SBATCH --gres=gpu:1
set -e
cd no/such/folder
python train.py
