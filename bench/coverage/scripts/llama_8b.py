"""Fine-tunes all weights of a Llama 8B in bfloat16 with AdamW; from a configuration, or from a checkpoint."""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", help="a folder with config.json and safetensors")
    parser.add_argument("--context", type=int, default=2048)
    args = parser.parse_args()

    if args.checkpoint:
        model = LlamaForCausalLM.from_pretrained(args.checkpoint, dtype=torch.bfloat16)
    else:
        config = LlamaConfig(
            vocab_size=128256,
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            max_position_embeddings=8192,
            use_cache=False,
        )
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.cuda()
    model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for step in range(10):
        tokens = torch.randint(0, model.config.vocab_size, (1, args.context)).cuda()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
