#!/usr/bin/env python
# After the style of submitit and others: the batch script is Python.
#SBATCH --gres=gpu:1
#SBATCH --job-name=direct
import torch

print(torch.__version__)
