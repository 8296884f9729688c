"""A training loop with accelerate, as in its nlp_example.py: prepare, accumulate, backward, clip, evaluate."""

import argparse

import torch
from accelerate import Accelerator
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed-precision", default="no")
    parser.add_argument("--accumulate", type=int, default=1)
    options = parser.parse_args()
    accelerator = Accelerator(
        mixed_precision=options.mixed_precision, gradient_accumulation_steps=options.accumulate
    )
    config = BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048)
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    data = torch.utils.data.TensorDataset(
        torch.randint(0, config.vocab_size, (128, 128)), torch.randint(0, 2, (128,))
    )
    train = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    test = torch.utils.data.DataLoader(data, batch_size=32)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 2 * len(train))
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
    for epoch in range(2):
        model.train()
        for tokens, labels in train:
            with accelerator.accumulate(model):
                loss = model(input_ids=tokens, labels=labels).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        right = 0
        for tokens, labels in test:
            with torch.no_grad():
                logits = model(input_ids=tokens).logits
            guesses, truth = accelerator.gather_for_metrics((logits.argmax(-1), labels))
            right += (guesses == truth).sum().item()
        accelerator.print(f"epoch {epoch}: accuracy {right / len(data):.3f}")


if __name__ == "__main__":
    main()
