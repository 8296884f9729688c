#!/bin/bash
# After the style of KAUST's scripts: variables are added to those of the user.
#SBATCH --gres=gpu:v100:1 --export=ALL,NCCL_SOCKET_IFNAME=eth0,SEED=3
python train.py --seed $SEED --cache $SCRATCH/cache
