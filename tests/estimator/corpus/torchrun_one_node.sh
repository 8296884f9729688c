#!/bin/bash
# After the style of PyTorch's own DDP tutorials.
#SBATCH --nodes=1 --ntasks=1 --gpus-per-node=4
torchrun --standalone --nproc_per_node=4 train.py --batch-size 32
