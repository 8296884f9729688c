#!/bin/bash
# After the style of NERSC's Perlmutter examples: one GPU for each task.
#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-task=1
srun --gpus-per-task=1 bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec python train.py'
