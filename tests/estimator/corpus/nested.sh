#!/bin/bash
# After the style of repositories with a scripts/ folder: the batch script calls another one.
#SBATCH --gres=gpu:1
bash sub/run.sh --fast
sh ./sub/run.sh --slow
