"""Causal language modelling with transformers' Trainer, as in the library's run_clm.py, from a configuration."""

import argparse

import torch
from transformers import AutoModelForCausalLM, GPT2Config, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count: int, length: int, vocabulary: int) -> None:
        self.rows = torch.randint(0, vocabulary, (count, length), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def accuracy(prediction) -> dict:
    return {"accuracy": float((prediction.predictions[:, :-1] == prediction.label_ids[:, 1:]).mean())}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    parser.add_argument("--optim", default="adamw_torch")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    config = GPT2Config(n_layer=options.layers, n_embd=512, n_head=8, n_positions=512, vocab_size=16384)
    model = AutoModelForCausalLM.from_config(config)
    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=8,
        per_device_eval_batch_size=16,
        gradient_accumulation_steps=options.accumulate,
        gradient_checkpointing=options.checkpointing,
        torch_compile=options.compile,
        optim=options.optim,
        bf16=options.precision == "bf16",
        fp16=options.precision == "fp16",
        num_train_epochs=1,
        eval_strategy="epoch" if options.evaluate else "no",
        save_strategy="epoch" if options.evaluate else "no",
        logging_steps=1,
        report_to=[],
    )
    Trainer(
        model=model,
        args=arguments,
        train_dataset=Tokens(64, 512, config.vocab_size),
        eval_dataset=Tokens(32, 512, config.vocab_size),
        compute_metrics=accuracy if options.evaluate else None,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
    ).train()


if __name__ == "__main__":
    main()
