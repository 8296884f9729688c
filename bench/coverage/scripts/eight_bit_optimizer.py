"""Full training of a GPT-2 with an optimizer of bitsandbytes."""

import argparse

import bitsandbytes
import torch
from transformers import AutoModelForCausalLM, GPT2Config


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--optim", default="AdamW8bit")
    options = parser.parse_args()
    config = GPT2Config(n_layer=4, n_embd=512, n_head=8, n_positions=256, vocab_size=16384)
    model = AutoModelForCausalLM.from_config(config).cuda()
    optimizer = getattr(bitsandbytes.optim, options.optim)(model.parameters(), lr=1e-4)
    for step in range(8):
        tokens = torch.randint(0, config.vocab_size, (8, 256), device="cuda")
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
