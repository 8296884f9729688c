"""A training script in the style of nanoGPT: batches from a memory map, fused AdamW, torch.compile by a switch."""

import argparse
import math
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for t in self.c_attn(self.ln_1(x)).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, length: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", nargs="?", const="default", default=None)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()

    path = Path(tempfile.mkdtemp()) / "train.bin"
    numpy.random.randint(0, options.vocabulary, 200_000).astype(numpy.uint16).tofile(path)

    def get_batch():
        data = numpy.memmap(path, dtype=numpy.uint16, mode="r")
        starts = torch.randint(len(data) - options.length - 1, (options.batch,))
        x, y = (
            torch.stack(
                [torch.from_numpy(data[i + k : i + k + options.length].astype(numpy.int64)) for i in starts]
            )
            for k in (0, 1)
        )
        return (t.pin_memory().to("cuda", non_blocking=True) for t in (x, y))

    torch.backends.cuda.matmul.allow_tf32 = True
    kind = getattr(torch, options.dtype)
    autocast = nullcontext() if kind is torch.float32 else torch.amp.autocast("cuda", dtype=kind)
    model = GPT(options.vocabulary, options.length, options.layers, options.heads, options.width).cuda()
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    scaler = torch.amp.GradScaler("cuda", enabled=kind is torch.float16)
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=6e-4,
        fused=True,
    )
    if options.compile:
        model = torch.compile(model, mode=None if options.compile == "default" else options.compile)
    x, y = get_batch()
    for step in range(20):
        for group in optimizer.param_groups:
            group["lr"] = 6e-4 * 0.5 * (1 + math.cos(math.pi * step / 20))
        for _ in range(options.accumulate):
            with autocast:
                _, loss = model(x, y)
                loss = loss / options.accumulate
            x, y = get_batch()
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        print(f"iter {step}: loss {loss.item() * options.accumulate:.4f}")


if __name__ == "__main__":
    main()
