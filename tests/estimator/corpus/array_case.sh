#!/bin/bash
# After the style of Harvard FASRC's array examples.
#SBATCH -a 1,3,5
#SBATCH --gpus=1
case $SLURM_ARRAY_TASK_ID in
    1) model=resnet18 ;;
    3) model=resnet50 ;;
    *) model=vit ;;
esac
python train.py --model "$model"
