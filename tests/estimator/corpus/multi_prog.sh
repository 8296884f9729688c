#!/bin/bash
# After the style of Slurm's documentation: different programs in one step.
#SBATCH -n 3 --gres=gpu:1
cat > tasks.conf <<EOT
0    python train.py --role learner
1-2  python prepare.py --role actor%o
EOT
srun --multi-prog tasks.conf
