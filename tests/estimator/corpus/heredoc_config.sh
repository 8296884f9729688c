#!/bin/bash
# After the style of bigscience's Megatron-DeepSpeed scripts: the configuration is written by the job.
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:8
config=./ds_config.$SLURM_JOB_ID.json
cat <<EOT > $config
{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}
EOT
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node 8 --nnodes $SLURM_NNODES \
    --rdzv_endpoint $MASTER_ADDR:6000 --rdzv_backend c10d --max_restarts 0 --tee 3"
export CMD="$(pwd)/train.py --deepspeed_config $config"
clear
srun --wait=60 --kill-on-bad-exit=1 --jobid $SLURM_JOB_ID bash -c "$LAUNCHER --node_rank \$SLURM_PROCID $CMD" 2>&1 | tee main.txt
