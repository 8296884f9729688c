#!/bin/bash
# After the style of NVIDIA's scripts for pyxis: flags stand before the image.
#SBATCH -N 2 --gres=gpu:8 --ntasks-per-node=8
srun --mpi=pmix --container-writable --container-image=nvcr.io#nvidia/pytorch --no-container-mount-home \
    --container-mounts=/data:/data bash -c "python train.py --rank \$SLURM_PROCID"
