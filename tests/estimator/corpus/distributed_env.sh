#!/bin/bash
# After the style of Stanford's and Stability's torch scripts: ranks from Slurm's variables.
#SBATCH --nodes=2 --ntasks-per-node=8 --gpus-per-node=8
export MASTER_ADDR=localhost MASTER_PORT=12802
srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID python train.py --dist'
