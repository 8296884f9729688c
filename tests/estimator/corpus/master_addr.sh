#!/bin/bash
# After the style of PyTorch Lightning's and NVIDIA's multi-node scripts.
#SBATCH -N 2 --ntasks-per-node=2 --gres=gpu:2
export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))
echo "NODELIST=${SLURM_NODELIST}"
srun python train.py
