#!/bin/bash
# After the style of affinity examples: GPUs of certain sockets.
#SBATCH --gres=gpu:a100:2(S:0-1),nvme
#SBATCH --exclusive --requeue
python train.py
