"""Trains a small Mixtral-like mixture of experts from a configuration, in bfloat16."""

import argparse

import torch
from transformers import MixtralConfig, MixtralForCausalLM


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experts", choices=("eager", "grouped_mm", "batched_mm"), default="grouped_mm")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--context", type=int, default=1024)
    args = parser.parse_args()

    config = MixtralConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_local_experts=8,
        num_experts_per_tok=2,
        output_router_logits=True,
        use_cache=False,
    )
    config._experts_implementation = args.experts
    model = MixtralForCausalLM(config).to(torch.bfloat16).cuda()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(20):
        tokens = torch.randint(0, config.vocab_size, (args.batch_size, args.context), device="cuda")
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
