"""Trains a small multilayer perceptron with DeepSpeed ZeRO: deepspeed_zero.py --stage 2 [--offload]."""

import argparse

import deepspeed
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=2)
parser.add_argument(
    "--offload", action="store_true", help="optimizer, and with stage 3 parameters, on the CPU"
)
parser.add_argument("--local_rank", type=int, default=-1)
options = parser.parse_args()

config = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": options.stage},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
if options.offload:
    config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if options.stage == 3:
        config["zero_optimization"]["offload_param"] = {"device": "cpu", "pin_memory": True}
deepspeed.init_distributed()
model = nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(2048, 2048), nn.GELU())))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(20):
    x = torch.randn(16, 2048, device=engine.device, dtype=torch.bfloat16)
    loss = engine(x).float().square().mean()
    engine.backward(loss)
    engine.step()
    print(f"step {step}: loss {loss.item():.3f}", flush=True)
