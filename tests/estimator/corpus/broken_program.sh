#!/bin/bash
# After the style of what goes wrong: the program is not there.
#SBATCH --gres=gpu:1
python trian.py --epochs 3
