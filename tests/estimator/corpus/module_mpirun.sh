#!/bin/bash
# After the style of Azure's DeepCAM scripts: a module brings launchers of its own, and they come first.
#SBATCH --nodes=1 --ntasks=2 --gres=gpu:2
export PATH=$PWD/openmpi/bin:$PATH
timeout 10h mpirun -np 2 -x NCCL_DEBUG=INFO python train.py
"$PWD/openmpi/bin/mpirun" python train.py --by-path
