#!/bin/bash
# After the style of scripts with defaults for their arguments.
#SBATCH --gres=gpu:1
model=${1:-base}
shift || true
if [[ $model == base ]]; then batch=32; else batch=8; fi
python train.py --model "$model" --batch $batch "$@"
