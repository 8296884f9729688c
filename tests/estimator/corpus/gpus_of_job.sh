#!/bin/bash
# After the style of NERSC's Perlmutter examples.
#SBATCH -A m0000 -C gpu -q regular
#SBATCH -N 2 -G 8 --ntasks-per-node=4 -c 32
export SLURM_CPU_BIND="cores"
srun python train.py
