"""GPT-2 in bfloat16 from the library's own config, with AdamW."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(n_layer=4, attn_implementation="sdpa")).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(5):
    tokens = torch.randint(50257, (4, 512), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print("step", step, "loss", float(loss))
