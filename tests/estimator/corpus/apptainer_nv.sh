#!/bin/bash
# After the style of LUMI and Harvard container examples.
#SBATCH --gres=gpu:1
apptainer exec --nv --bind /scratch:/data pytorch.sif python train.py
