"""Fine-tunes a Llama whose layers lie on all GPUs of the node, as `device_map="auto"` places them."""

import torch
from accelerate import dispatch_model, infer_auto_device_map
from accelerate.utils import get_balanced_memory
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=1024,
    num_hidden_layers=12,
    num_attention_heads=16,
    num_key_value_heads=8,
    intermediate_size=2816,
    vocab_size=16384,
)
model = LlamaForCausalLM(config)
alone = model._no_split_modules
limits = get_balanced_memory(model, no_split_module_classes=alone)
model = dispatch_model(model, infer_auto_device_map(model, limits, no_split_module_classes=alone))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(20):
    tokens = torch.randint(0, config.vocab_size, (4, 512), device="cuda:0")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f}", flush=True)
