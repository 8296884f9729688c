#!/bin/bash
# After the style of PyTorch's multi-node example (examples/distributed/ddp-tutorial-series/slurm).
#SBATCH --nodes=4 --ntasks=4 --gpus-per-task=1 --cpus-per-task=4
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node=${nodes[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
srun torchrun --nnodes 4 --nproc_per_node 1 --rdzv_id $RANDOM --rdzv_backend c10d \
    --rdzv_endpoint $head_node_ip:29500 train.py 50 10
