#!/bin/bash
# After the style of NERSC's and TACC's several-jobs-in-one examples: two trainings share the GPU.
#SBATCH --gres=gpu:1
python train.py --seed 1 &
python train.py --seed 2 &
wait
