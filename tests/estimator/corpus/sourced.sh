#!/bin/bash
# After the style of repositories with a common settings file.
#SBATCH --gres=gpu:1
. ./sub/settings.sh
python train.py $COMMON
