#!/bin/bash
# After the style of TACC examples.
#SBATCH --gres=gpu:1
cd "$SLURM_SUBMIT_DIR/sub" || exit 1
python ../train.py
