#!/bin/bash
# After the style of CSC's and LUMI's scripts: folders by account, ports by job, defaults where nothing was asked.
#SBATCH --account=project_465000001 --qos=short --gpus-per-node=1
export HF_HOME=/scratch/$SLURM_JOB_ACCOUNT/$USER/hf-cache
export MASTER_PORT="1${SLURM_JOB_ID:0-4}"
python train.py --workers ${SLURM_CPUS_PER_TASK:-6} --queue $SLURM_JOB_QOS --cpus $SLURM_CPUS_ON_NODE
