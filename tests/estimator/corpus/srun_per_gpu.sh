#!/bin/bash
# After the style of Jean Zay's (IDRIS) examples: one task for each GPU.
#SBATCH --nodes=2 --ntasks-per-node=4 --gres=gpu:4 --cpus-per-task=10 --hint=nomultithread
module purge
module load pytorch-gpu/py3/2.0.0
set -x
srun python -u train.py
