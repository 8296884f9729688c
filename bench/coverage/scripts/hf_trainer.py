"""Fine-tunes a small BERT with the Trainer of transformers; evaluates every 500 steps on larger batches."""

import argparse

import numpy
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    """Random sentences of 128 words."""

    def __init__(self, count):
        self.words = torch.randint(0, 30000, (count, 128))
        self.labels = torch.randint(0, 2, (count,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.labels[index]}


def accuracy(prediction):
    """Share of right answers."""
    return {"accuracy": float((numpy.argmax(prediction.predictions, -1) == prediction.label_ids).mean())}


def main():
    """Trains for three epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--eval-batch", type=int, default=256)
    parser.add_argument("--strategy", default="steps")
    parser.add_argument("--accumulate", type=int, default=2)
    options = parser.parse_args()
    config = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    arguments = TrainingArguments(
        output_dir="bert",
        num_train_epochs=3,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=options.eval_batch,
        gradient_accumulation_steps=options.accumulate,
        eval_strategy=options.strategy,
        save_strategy=options.strategy,
        eval_steps=500,
        save_steps=500,
        load_best_model_at_end=True,
        bf16=True,
        report_to=[],
    )
    trainer = Trainer(
        BertForSequenceClassification(config),
        arguments,
        train_dataset=Sentences(20000),
        eval_dataset=Sentences(4000),
        compute_metrics=accuracy,
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
