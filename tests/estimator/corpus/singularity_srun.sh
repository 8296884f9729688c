#!/bin/bash
# After the style of Jülich's and LUMI's multi-node container examples.
#SBATCH --nodes=2 --ntasks-per-node=8 --gpus-per-node=8
srun singularity exec --nv -B "$PWD" pytorch.sif bash -c 'export LOCAL_RANK=$SLURM_LOCALID; python train.py'
