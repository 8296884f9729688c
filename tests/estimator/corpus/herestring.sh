#!/bin/bash
# After the style of scripts that split a line into settings.
#SBATCH --gres=gpu:1
read -r model rate <<< "resnet50 0.1"
python train.py --model "$model" --lr "$rate"
