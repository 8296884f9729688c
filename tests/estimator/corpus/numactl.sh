#!/bin/bash
# After the style of LUMI's binding examples.
#SBATCH --gres=gpu:1
numactl --cpunodebind=0 --membind=0 python train.py
