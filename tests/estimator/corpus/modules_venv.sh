#!/bin/bash
# After the style of Compute Canada (module load, virtualenv).
#SBATCH --gres=gpu:1
module purge
module load StdEnv/2023 python/3.11 cuda
source venv/bin/activate
python train.py
