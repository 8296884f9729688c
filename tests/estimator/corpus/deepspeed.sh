#!/bin/bash
# After the style of DeepSpeed examples.
#SBATCH --gres=gpu:2
deepspeed --num_gpus=2 --master_port=29501 train.py --deepspeed ds_config.json
