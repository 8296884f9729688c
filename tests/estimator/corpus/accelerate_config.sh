#!/bin/bash
# After the style of Hugging Face's scripts: how many processes there are stands in a file, made by the script.
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:4
cat > two_nodes.yaml << EOF
distributed_type: FSDP
num_machines: $SLURM_NNODES
num_processes: 6
EOF
srun accelerate launch --config_file two_nodes.yaml --machine_rank $SLURM_NODEID train.py
srun accelerate launch --config_file=two_nodes.yaml --num_processes 4 train.py --fewer
