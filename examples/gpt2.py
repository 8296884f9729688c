"""Trains GPT-2 (124M parameters) from scratch with AdamW in bfloat16 on made-up text."""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--context", type=int, default=1024, help="tokens of one sequence")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=6e-4)
    args = parser.parse_args()

    device = torch.device("cuda")
    config = GPT2Config(n_positions=args.context, use_cache=False)
    with device:  # its weights are made on the GPU
        model = GPT2LMHeadModel(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)

    tokens = torch.randint(0, config.vocab_size, (args.batch_size, args.context))
    for step in range(args.steps):
        batch = tokens.to(device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:4d}  loss {loss.item():.3f}", flush=True)
    print(f"peak reserved: {torch.cuda.max_memory_reserved() / 1024**2:.0f} MiB")


if __name__ == "__main__":
    main()
