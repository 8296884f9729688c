"""Answers ten thousand prompts with a small GPT-2, one after another."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


@torch.inference_mode()
def main():
    """Generates 32 tokens for each prompt."""
    model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4)).cuda().eval().half()
    for prompt in range(10000):
        words = torch.randint(0, 50000, (4, 64), device="cuda")
        answer = model.generate(
            words, attention_mask=torch.ones_like(words), max_new_tokens=32, do_sample=False, pad_token_id=0
        )
        if prompt % 100 == 0:
            print(prompt, answer.shape, flush=True)


if __name__ == "__main__":
    main()
