#!/bin/bash
# After the style of clusters without srun for trainings: ssh to each node.
#SBATCH --nodes=2 --gres=gpu:1
rank=0
for node in $(scontrol show hostnames); do
    ssh "$node" "cd $PWD && RANK=$rank python train.py" &
    rank=$((rank + 1))
done
wait
python train.py
