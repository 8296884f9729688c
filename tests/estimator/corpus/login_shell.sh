#!/bin/bash -l
# After the style of CSCS and Dawn: a login shell sets PATH anew.
#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-node=4
PATH=$(dirname "$(command -v python)"):/usr/local/bin:/usr/bin:/bin
gpus=$(nvidia-smi -L | wc -l)
mpirun -n $SLURM_NTASKS -ppn $SLURM_NTASKS_PER_NODE python train.py --gpus $gpus
