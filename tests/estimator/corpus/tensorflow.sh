#!/bin/bash
# After the style of jobs that train with something else.
#SBATCH --gres=gpu:1
python tf_train.py
