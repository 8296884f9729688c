"""Trains a multilayer perceptron for epochs; each one ends with an evaluation on larger batches and a checkpoint.

`--keep` collects the predictions of an evaluation on the GPU, as many scripts do before they compute metrics.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    """Random signals; of many lengths if asked for."""

    def __init__(self, count, lengths):
        self.count, self.lengths = count, lengths

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        length = 1024 if not self.lengths else 128 + index * 37 % 896
        return torch.rand(length), index % 10


def padded(samples):
    """A batch as long as its longest signal."""
    signals = nn.utils.rnn.pad_sequence([signal for signal, _ in samples], batch_first=True)
    return signals, torch.tensor([label for _, label in samples])


class Classifier(nn.Module):
    """A multilayer perceptron over frames of a signal."""

    def __init__(self, width=2048):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.head = nn.Linear(width, 10)

    def forward(self, signals):
        return self.head(self.layers(signals[:, ::8, None]).mean(1))


def evaluate(model, loader, keep):
    """Mean loss and accuracy over all batches."""
    model.eval()
    losses, right, outputs = 0.0, 0, []
    with torch.no_grad():
        for signals, labels in loader:
            signals, labels = signals.cuda(non_blocking=True), labels.cuda(non_blocking=True)
            prediction = model(signals)
            losses += nn.functional.cross_entropy(prediction, labels).item()
            right += (prediction.argmax(1) == labels).sum().item()
            if keep:
                outputs.append(model.layers(signals[:, ::8, None]).mean(1))
    if keep:
        print("features", torch.cat(outputs).shape)
    return losses / len(loader), right / len(loader.dataset)


def main():
    """Trains, evaluates, saves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--start", choices=("fork", "spawn"), default="fork")
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--lengths", action="store_true", help="signals of many lengths")
    parser.add_argument("--keep", action="store_true", help="collect predictions on the GPU")
    options = parser.parse_args()
    loading = {"num_workers": options.workers, "pin_memory": True}
    if options.lengths:
        loading["collate_fn"] = padded
    if options.workers:
        loading |= {
            "multiprocessing_context": options.start,
            "persistent_workers": options.persistent,
            "prefetch_factor": 4,
        }
    data = Signals(50000, options.lengths)
    training = DataLoader(data, batch_size=16, shuffle=True, drop_last=True, **loading)
    testing = DataLoader(data, batch_size=512, **loading)
    model = Classifier().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = options.epochs * len(training) // options.accumulate
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    best = 0.0
    for epoch in range(options.epochs):
        model.train()
        for index, (signals, labels) in enumerate(training):
            prediction = model(signals.cuda(non_blocking=True))
            loss = nn.functional.cross_entropy(prediction, labels.cuda(non_blocking=True))
            (loss / options.accumulate).backward()
            if (index + 1) % options.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
        loss, accuracy = evaluate(model, testing, options.keep)
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy:.3f}")
        if accuracy >= best:
            best = accuracy
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "best.pt")
    model.load_state_dict(torch.load("best.pt", map_location="cuda")["model"])
    print(evaluate(model, testing, options.keep))


if __name__ == "__main__":
    main()
