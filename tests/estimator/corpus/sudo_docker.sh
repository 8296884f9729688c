#!/bin/bash
# After the style of scripts for a workstation under Slurm: containers as root.
#SBATCH --gpus-per-node=8
sudo -n nvidia-smi -pm 1
sudo docker run --gpus all -v /data:/workspace pytorch:v3 torchrun --nproc_per_node=8 train.py
