#!/bin/bash
# After the style of Hugging Face's accelerate multi-node example.
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:4
export GPUS_PER_NODE=4
head_node_ip=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export LAUNCHER="accelerate launch --num_processes $((SLURM_NNODES * GPUS_PER_NODE)) \
    --num_machines $SLURM_NNODES --rdzv_backend c10d --main_process_ip $head_node_ip --main_process_port 29500"
export SCRIPT="train.py" SCRIPT_ARGS="--mixed_precision fp16"
srun $LAUNCHER $SCRIPT $SCRIPT_ARGS
