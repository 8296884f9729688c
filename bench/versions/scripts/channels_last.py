"""Convolutions in channels_last with bfloat16, transposed convolutions, a fused optimizer."""

import torch

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 64, 3, padding=1),
    torch.nn.BatchNorm2d(64),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(64, 128, 3, padding=1, groups=4),
    torch.nn.GroupNorm(8, 128),
    torch.nn.SiLU(),
    torch.nn.ConvTranspose2d(128, 64, 2, stride=2),
    torch.nn.Conv2d(64, 3, 1),
).to("cuda", memory_format=torch.channels_last)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(5):
    image = torch.randn(16, 3, 128, 128, device="cuda").to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.mse_loss(model(image), image)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
