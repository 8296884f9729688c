#!/bin/bash
# After the style of older repositories (torch.distributed.launch).
#SBATCH --gres=gpu:4
python -m torch.distributed.launch --nproc_per_node=4 --master_port=$((10000 + SLURM_JOB_ID)) train.py --local
