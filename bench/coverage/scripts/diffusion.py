"""Trains a diffusion transformer (DiT, Peebles and Xie 2023) or a U-Net of diffusers, keeps an EMA, and samples."""

import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

SIZES = {"S": (12, 384, 6), "B": (12, 768, 12), "L": (24, 1024, 16), "XL": (28, 1152, 16)}
STEPS = 1000


def modulate(x, shift, scale):
    return x * (1 + scale[:, None]) + shift[:, None]


def sinusoids(position, width):
    frequencies = torch.exp(
        -math.log(10000) * torch.arange(width // 2, device=position.device) / (width // 2)
    )
    angles = position[:, None].float() * frequencies[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Block(nn.Module):
    """Attention and a perceptron; shift, scale and gate of both come from the condition."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(c).chunk(6, dim=1)
        batch, length, width = x.shape
        qkv = self.qkv(modulate(self.norm1(x), shift1, scale1)).reshape(
            batch, length, 3, self.heads, width // self.heads
        )
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + gate1[:, None] * self.out(attended)
        return x + gate2[:, None] * self.mlp(modulate(self.norm2(x), shift2, scale2))


class DiT(nn.Module):
    def __init__(self, size="S", patch=2, channels=4, side=32, classes=1000):
        super().__init__()
        depth, width, heads = SIZES[size]
        self.patch, self.side, self.classes, self.width = patch, side, classes, width
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.position = nn.Parameter(torch.zeros(1, (side // patch) ** 2, width), requires_grad=False)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(classes + 1, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.head = nn.Linear(width, patch * patch * channels)

    def forward(self, x, t, y):
        if self.training:  # for guidance without a classifier, a tenth of the labels is dropped
            y = torch.where(torch.rand(len(y), device=y.device) < 0.1, self.classes, y)
        c = self.time(sinusoids(t, 256)) + self.label(y)
        batch, channels, height, width = x.shape
        x = self.embed(x).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.condition(c).chunk(2, dim=1)
        x = self.head(modulate(self.norm(x), shift, scale))
        rows, columns = height // self.patch, width // self.patch
        x = x.reshape(batch, rows, columns, self.patch, self.patch, channels)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(batch, channels, height, width)


class UNet(nn.Module):
    """A U-Net of diffusers with class labels, called as the transformer is."""

    def __init__(self, classes=1000):
        super().__init__()
        from diffusers import UNet2DModel

        self.net = UNet2DModel(
            sample_size=32, in_channels=4, out_channels=4, layers_per_block=2, block_out_channels=(128, 256, 384),
            down_block_types=("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"), num_class_embeds=classes + 1,
        )  # fmt: skip

    def forward(self, x, t, y):
        return self.net(x, t, class_labels=y).sample


@torch.no_grad()
def update(ema, model, decay=0.9999):
    for kept, new in zip(ema.parameters(), model.parameters()):
        kept.lerp_(new, 1 - decay)


@torch.no_grad()
def sample(model, labels, steps=10):
    """A few steps of DDIM."""
    model.eval()
    x = torch.randn(len(labels), 4, 32, 32, device="cuda")
    for t in torch.linspace(STEPS - 1, 0, steps).long().tolist():
        noise = model(x, torch.full((len(labels),), t, device="cuda"), labels)
        kept = math.cos(math.pi / 2 * (t + 1) / (STEPS + 1)) ** 2
        x = (x - math.sqrt(1 - kept) * noise) / math.sqrt(max(kept, 1e-4))
    return x


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=(*SIZES, "unet"), default="S")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sample-every", type=int, default=100)
    args = parser.parse_args()
    model = (UNet() if args.model == "unet" else DiT(args.model)).cuda()
    ema = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
    kept = torch.cos(torch.linspace(0, math.pi / 2, STEPS + 1, device="cuda"))[1:] ** 2
    model.train()
    for step in range(args.steps):
        x = torch.randn(args.batch_size, 4, 32, 32).cuda()
        y = torch.randint(1000, (args.batch_size,)).cuda()
        t = torch.randint(STEPS, (args.batch_size,), device="cuda")
        noise = torch.randn_like(x)
        alpha = kept[t][:, None, None, None]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.mse_loss(model(alpha.sqrt() * x + (1 - alpha).sqrt() * noise, t, y), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update(ema, model)
        print(f"step {step}: loss {loss.item():.4f}")
        if (step + 1) % args.sample_every == 0:
            torch.save(sample(ema, torch.arange(8, device="cuda")).cpu(), "samples.pt")
            torch.save({"model": model.state_dict(), "ema": ema.state_dict()}, "diffusion.pt")


if __name__ == "__main__":
    main()
