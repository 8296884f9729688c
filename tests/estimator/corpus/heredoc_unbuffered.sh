#!/bin/bash
# After the style of short checks: the program comes with the script.
#SBATCH --gres=gpu:1
python -u - --epochs 3 <<END
import sys
import torch
END
