#!/bin/bash
# After the style of projects kept by uv.
#SBATCH --gres=gpu:1
uv sync --frozen
uv run --offline train.py --lr 1e-3
