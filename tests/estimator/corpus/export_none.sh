#!/bin/bash
# After the style of sites that ask for jobs without the user's environment (Sapelo2, NHR).
#SBATCH --export=NONE
#SBATCH --gres=gpu:1
source ~/.bashrc
unset SLURM_EXPORT_ENV
python train.py --out "${SCRATCH:-runs}" --user $USER
