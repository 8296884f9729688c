"""Scaled dot-product attention by each of PyTorch's ways: flash, memory-efficient, cuDNN, plain."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

WAYS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 5):  # before, it runs on Hopper only
    WAYS.append(SDPBackend.CUDNN_ATTENTION)

weight = torch.nn.Linear(512, 3 * 512).cuda()
optimizer = torch.optim.Adam(weight.parameters())
for step in range(3):
    optimizer.zero_grad()
    for way in WAYS:
        x = torch.randn(4, 1024, 512, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            q, k, v = (t.unflatten(-1, (8, 64)).transpose(1, 2) for t in weight(x).chunk(3, dim=-1))
            with sdpa_kernel([way]):
                y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y.float().square().mean().backward()
        print("step", step, way.name)
    optimizer.step()
