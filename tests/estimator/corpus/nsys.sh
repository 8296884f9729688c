#!/bin/bash
# After the style of NERSC's profiling examples.
#SBATCH --gres=gpu:1
srun nsys profile -o report_%h --trace=cuda,nvtx -f true python train.py --steps 20
