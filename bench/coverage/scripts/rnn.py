"""A word language model with an LSTM or a GRU, trained with truncated backpropagation through time."""

import argparse
import math

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, kind, words, width, depth, dropout):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.rnn = getattr(nn, kind)(width, width, depth, dropout=dropout)
        self.drop = nn.Dropout(dropout)
        self.decoder = nn.Linear(width, words)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.drop(self.embedding(tokens)), hidden)
        return self.decoder(self.drop(output)), hidden


def detach(hidden):
    return hidden.detach() if isinstance(hidden, torch.Tensor) else tuple(part.detach() for part in hidden)


def batchify(text, batch):
    length = len(text) // batch
    return text[: length * batch].view(batch, length).t().contiguous().cuda()


def evaluate(model, text, criterion, bptt):
    model.eval()
    total, hidden = 0.0, None
    with torch.no_grad():
        for start in range(0, len(text) - 1, bptt):
            length = min(bptt, len(text) - 1 - start)
            output, hidden = model(text[start : start + length], hidden)
            target = text[start + 1 : start + 1 + length]
            total += length * criterion(output.flatten(0, 1), target.flatten()).item()
    return total / (len(text) - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("LSTM", "GRU", "RNN"), default="LSTM")
    parser.add_argument("--words", type=int, default=33278)
    parser.add_argument("--width", type=int, default=650)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--bptt", type=int, default=35)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=20.0)
    args = parser.parse_args()
    model = Model(args.kind, args.words, args.width, args.depth, dropout=0.5).cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    train = batchify(torch.randint(args.words, (100_000,)), args.batch_size)
    val = batchify(torch.randint(args.words, (5_000,)), 10)
    best = None
    for epoch in range(args.epochs):
        model.train()
        hidden = None
        for step, start in enumerate(range(0, len(train) - 1, args.bptt)):
            length = min(args.bptt, len(train) - 1 - start)
            hidden = detach(hidden) if hidden is not None else None
            optimizer.zero_grad()
            output, hidden = model(train[start : start + length], hidden)
            loss = criterion(output.flatten(0, 1), train[start + 1 : start + 1 + length].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            if step % 20 == 0:
                print(
                    f"epoch {epoch} step {step}: loss {loss.item():.2f}, perplexity {math.exp(min(loss.item(), 20)):.1f}"
                )
        value = evaluate(model, val, criterion, args.bptt)
        if best is None or value < best:
            torch.save(model.state_dict(), "rnn.pt")
            best = value
        else:
            optimizer.param_groups[0]["lr"] /= 4.0


if __name__ == "__main__":
    main()
