#!/bin/bash
# After the style of scripts that hand over only some variables.
#SBATCH --gres=gpu:1
srun --export=ALL,MODE=fast,LEVEL=3 --cpu-bind=none --mpi=pmi2 python train.py
