#!/bin/bash
# After the style of Compute Canada: an environment made on the node.
#SBATCH --gres=gpu:1
module load python
virtualenv() { mkdir -p "$2/bin"; printf 'export VIRTUAL_ENV=%s\n' "$2" > "$2/bin/activate"; }
virtualenv --no-download $SLURM_TMPDIR/env
source $SLURM_TMPDIR/env/bin/activate
pip install --no-index --upgrade pip
python -m pip install --no-index -r requirements.txt
python train.py
