#!/bin/bash
# After the style of Mila's and Compute Canada's data staging.
#SBATCH --gres=gpu:1
mkdir -p $SLURM_TMPDIR/data
rsync -a --progress ~/projects/data/ $SLURM_TMPDIR/data/
tar -cf bundle.tar configs
tar -xf bundle.tar -C $SLURM_TMPDIR/data
cp configs/sweep.txt $SLURM_TMPDIR/data/
wget -q https://example.org/weights.pt -O weights.pt
python train.py --data $SLURM_TMPDIR/data/configs/sweep.txt
