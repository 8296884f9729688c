#!/bin/bash
# After the style of long shell programs with functions.
#SBATCH --gres=gpu:1
log() { echo "[$(date +%T)] $*"; }
train() {
    local name=$1
    shift
    log "training $name"
    python train.py --name "$name" "$@"
}
train small --width 64
train large --width 512
