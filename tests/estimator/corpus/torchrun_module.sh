#!/bin/bash
# After the style of OLMo and torchtitan: a module, as many processes as GPUs.
#SBATCH --gres=gpu:8
torchrun --nproc_per_node=gpu -m pkg.train --config configs/sweep.txt
