#!/bin/bash
# After the style of fairseq and other packages that are run as modules.
#SBATCH --gres=gpu:1
python -m pkg.train --fp16
