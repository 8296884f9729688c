#!/bin/bash
# After the style of preprocessing jobs in front of a training.
#SBATCH --cpus-per-task=16 --mem=64G
python prepare.py --workers $SLURM_CPUS_PER_TASK
