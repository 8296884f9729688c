"""Optimizers with their loop, foreach and fused forms."""

import torch

KINDS = [
    (torch.optim.SGD, {"momentum": 0.9, "foreach": False}),
    (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
    (torch.optim.Adam, {"foreach": True}),
    (torch.optim.AdamW, {"fused": True, "amsgrad": True}),
    (torch.optim.NAdam, {"foreach": True}),
    (torch.optim.Adagrad, {}),
    (torch.optim.Adadelta, {}),
]
for kind, options in KINDS:
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda()
    optimizer = kind(model.parameters(), lr=0.01, **options)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(32, 512, device="cuda")).square().mean().backward()
        optimizer.step()
    print(kind.__name__, options)
