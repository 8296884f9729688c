#!/bin/bash
# After the style of long trainings in short queues: the job submits its successor, and mails.
#SBATCH --gres=gpu:1 --mail-type=END --mail-user=me@example.org
sbatch --dependency=afterok:$SLURM_JOB_ID "$0"
python train.py
echo finished | mail -s "job $SLURM_JOB_ID" me@example.org
squeue -u $USER
sleep 60
