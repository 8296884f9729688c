#!/bin/bash
# After the style of Princeton's examples (anaconda module, conda activate).
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=4 --mem=4G --gres=gpu:1 --time=00:05:00
module purge
module load anaconda3/2024.2
source "$(conda info --base)/etc/profile.d/conda.sh"
conda activate torch-env
python train.py --epochs=3
