"""Trains a transformer from its configuration on texts of 128 tokens, as xMem's authors did.

Random tokens stand in for wikitext-2. The loop follows the published description: fp32, learning rate 0.001,
four iterations and one more; the model goes to the GPU after the optimizer is made.
"""

from __future__ import annotations

import argparse

import torch
import transformers
from torch.utils.data import DataLoader, Dataset

LENGTH, ITERATIONS = 128, 4

# what the published configurations say where they differ from the classes' defaults
CONFIGURATIONS: dict[str, tuple[str, dict[str, object]]] = {
    "EleutherAI/gpt-neo-125M": (
        "GPTNeo",
        {
            "hidden_size": 768, "num_layers": 12, "num_heads": 12, "window_size": 256,
            "attention_types": [[["global", "local"], 6]], "max_position_embeddings": 2048,
            "vocab_size": 50257, "attention_dropout": 0, "embed_dropout": 0, "resid_dropout": 0,
        },
    ),
    "T5-small": (
        "T5",
        {
            "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "vocab_size": 32128,
            "decoder_start_token_id": 0,
        },
    ),
    "t5-base": (
        "T5",
        {
            "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "vocab_size": 32128,
            "decoder_start_token_id": 0,
        },
    ),
    "cerebras/Cerebras-GPT-111M": (
        "GPT2",
        {
            "n_embd": 768, "n_layer": 10, "n_head": 12, "n_inner": 3072, "n_positions": 2048,
            "vocab_size": 50257, "activation_function": "gelu",
            "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "scale_attn_weights": True,
        },
    ),
    "facebook/opt-125m": (
        "OPT",
        {
            "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "ffn_dim": 3072,
            "word_embed_proj_dim": 768, "max_position_embeddings": 2048, "vocab_size": 50272,
        },
    ),
    "facebook/opt-350m": (
        "OPT",
        {
            "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096,
            "word_embed_proj_dim": 512, "max_position_embeddings": 2048, "vocab_size": 50272,
            "do_layer_norm_before": False,
        },
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (
        "Qwen2",
        {
            "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12,
            "num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151936,
            "max_position_embeddings": 131072, "tie_word_embeddings": False, "rope_theta": 10000.0,
        },
    ),
    "google/gemma-2-2b-it": (
        "Gemma2",
        {
            "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 256, "intermediate_size": 9216, "vocab_size": 256000,
        },
    ),
    "meta-llama/Llama-3.2-3B-Instruct": (
        "Llama",
        {
            "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "vocab_size": 128256,
            "max_position_embeddings": 131072, "tie_word_embeddings": True, "rope_theta": 500000.0,
        },
    ),
}  # fmt: skip


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Texts that fill the whole length."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        return 36_718

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(LENGTH) * 7919 + index) % self.vocabulary
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("model", choices=list(CONFIGURATIONS))
    options.add_argument("--batch", type=int, required=True)
    options.add_argument("--optimizer", required=True, choices=["SGD", "Adam", "AdamW", "Adafactor"])
    options.add_argument("--zero-grad", default="start", choices=["start", "before-backward", "after-step"])
    return options


def build(options: argparse.Namespace) -> torch.nn.Module:
    """The model with random weights."""
    family, settings = CONFIGURATIONS[options.model]
    configuration = getattr(transformers, f"{family}Config")(**settings)
    head = {"GPT2": "GPT2LMHeadModel", "T5": "T5ForConditionalGeneration"}.get(family, f"{family}ForCausalLM")
    model: torch.nn.Module = getattr(transformers, head)(configuration)
    return model


def example(options: argparse.Namespace) -> dict[str, torch.Tensor]:
    """The input of one step."""
    shape = (options.batch, LENGTH)
    return {key: torch.ones(shape, dtype=torch.long) for key in ("input_ids", "attention_mask", "labels")}


def main() -> None:
    """Trains."""
    options = parser().parse_args()
    device = torch.device("cuda")
    model = build(options)
    loader = DataLoader(Texts(model.config.vocab_size), batch_size=options.batch, shuffle=True)
    model.train()
    if options.optimizer == "Adafactor":
        optimizer = transformers.Adafactor(model.parameters(), lr=0.001, relative_step=False)
    else:
        optimizer = getattr(torch.optim, options.optimizer)(model.parameters(), lr=0.001)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
    model.to(device)
    for index, batch in enumerate(loader):
        if options.zero_grad == "start":
            optimizer.zero_grad()
        batch = {key: value.to(device) for key, value in batch.items()}
        outputs = model(**batch)
        if options.zero_grad == "before-backward":
            optimizer.zero_grad()
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        if options.zero_grad == "after-step":
            optimizer.zero_grad()
        if index == ITERATIONS:
            break
        schedule.step()


if __name__ == "__main__":
    main()
