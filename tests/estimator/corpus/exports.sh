#!/bin/bash
# After the style of language-model scripts: all settings are in the environment.
#SBATCH --gres=gpu:1
export NCCL_DEBUG=INFO HF_HOME=$SCRATCH/hf
export WANDB_API_KEY=not-to-be-told
OMP_NUM_THREADS=8 TOKENIZERS_PARALLELISM=false python train.py
