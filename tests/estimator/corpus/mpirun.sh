#!/bin/bash
# After the style of Horovod scripts.
#SBATCH -n 4 --gres=gpu:4
mpirun -np 4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -mca pml ob1 python train.py
