#!/bin/bash
# After the style of sites that share GPUs.
#SBATCH --gres=shard:4
python train.py
