"""A training script of the course "Language Modeling from Scratch": needs its package `cs336_basics`.

Arguments: D_MODEL D_FF LAYERS HEADS BATCH LENGTH fp32|bf16 forward|backward|train [--segments N] [--steps N]
"""

from __future__ import annotations

import argparse
from typing import Any


def main() -> None:
    """Trains for a few steps."""
    parser = argparse.ArgumentParser()
    for name in ("d_model", "d_ff", "layers", "heads", "batch", "length"):
        parser.add_argument(name, type=int)
    parser.add_argument("dtype", choices=("fp32", "bf16"))
    parser.add_argument("mode", choices=("forward", "backward", "train"))
    parser.add_argument("--segments", type=int, default=0, help="checkpoint the layers in so many groups")
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()

    import torch
    import torch.nn.functional as F
    from cs336_basics.model import BasicsTransformerLM
    from cs336_basics.optimizer import AdamW
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(BasicsTransformerLM):  # type: ignore[misc]
        """The same model; the layers of a group are run again in the backward pass."""

        def forward(self, tokens: Any) -> Any:
            x = self.token_embeddings(tokens)
            size = -(-len(self.layers) // options.segments)
            for first in range(0, len(self.layers), size):
                group = torch.nn.Sequential(*self.layers[first : first + size])
                x = checkpoint(group, x, use_reentrant=False)
            return self.lm_head(self.ln_final(x))

    kind = Checkpointed if options.segments else BasicsTransformerLM
    model = kind(10000, options.length, options.d_model, options.layers, options.heads, options.d_ff, 10000.0)
    model = model.to("cuda")
    optimizer = AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randint(0, 10000, (options.batch, options.length), device="cuda")
    targets = torch.randint(0, 10000, (options.batch, options.length), device="cuda")

    def step() -> None:
        """As measured: no loss where only forward passes run; else the logits live until the step's end."""
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=options.dtype == "bf16"):
            logits = model(inputs)
            if options.mode == "forward":
                return
            loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        if options.mode == "train":
            optimizer.step()

    for _ in range(options.steps):
        step()


if __name__ == "__main__":
    main()
