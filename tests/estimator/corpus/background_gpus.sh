#!/bin/bash
# After the style of scripts with one process on each GPU.
#SBATCH --gres=gpu:4
for gpu in 0 1 2 3; do
    CUDA_VISIBLE_DEVICES=$gpu python train.py --fold $gpu > fold$gpu.txt 2>&1 &
done
wait
