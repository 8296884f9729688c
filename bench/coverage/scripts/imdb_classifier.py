"""Sentiment of film reviews: a small BERT, trained from scratch on IMDB of the Hugging Face Hub."""

import torch
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

LENGTH = 256


def encode(batch):
    words = [[hash(word) % 30000 + 1 for word in text.split()][:LENGTH] for text in batch["text"]]
    return {"input_ids": [row + [0] * (LENGTH - len(row)) for row in words]}


train = load_dataset("stanfordnlp/imdb", split="train").map(encode, batched=True)
loader = DataLoader(train.with_format("torch", columns=["input_ids", "label"]), batch_size=16, shuffle=True)
model = BertForSequenceClassification(BertConfig(num_hidden_layers=4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
for batch in loader:
    optimizer.zero_grad()
    model(input_ids=batch["input_ids"].cuda(), labels=batch["label"].cuda()).loss.backward()
    optimizer.step()
