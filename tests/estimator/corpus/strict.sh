#!/bin/bash
# After the style of careful shell programmers.
#SBATCH --gres=gpu:1
set -euo pipefail
IFS=$'\n\t'
trap 'echo "failed in line $LINENO" >&2' ERR
readonly out=${OUT:-results}
python train.py --out "$out" | tee log.txt
