"""Trains a classifier with everything that reads values back: metrics, early stopping, plateaus, a GradScaler."""

import math

import torch
import torchmetrics
from torch import nn


def evaluate(model, loader, device):
    model.eval()
    accuracy = torchmetrics.classification.MulticlassF1Score(num_classes=10).to(device)
    correct = total = 0
    losses, predictions = [], []
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            out = model(x)
            losses.append(nn.functional.cross_entropy(out, y).item())
            correct += (out.argmax(dim=1) == y).sum().item()
            total += (y >= 0).sum().item()
            accuracy.update(out, y)
            predictions.append(out.softmax(dim=1).cpu().numpy())
            for label in y.unique().tolist():
                assert (y == label).any()
    assert all(math.isfinite(loss) and loss > 0 for loss in losses)
    return sum(losses) / len(losses), correct / total, accuracy.compute().item()


def main():
    device = torch.device("cuda")
    model = nn.Sequential(
        nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
    )
    model.to(device)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
    scaler = torch.amp.GradScaler("cuda")
    data = torch.utils.data.TensorDataset(torch.randn(4096, 512), torch.randint(0, 10, (4096,)))
    loader = torch.utils.data.DataLoader(data, batch_size=256, shuffle=True)
    best, waited = math.inf, 0
    for epoch in range(3):
        model.train()
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            if torch.isnan(loss) or not torch.isfinite(loss).all():
                raise SystemExit("the loss is not finite")
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            scaler.step(optimizer)
            scaler.update()
            average.update_parameters(model)
        validation, accuracy, f1 = evaluate(model, loader, device)
        plateau.step(validation)
        print(
            f"epoch {epoch}: loss {validation:.3f} accuracy {accuracy:.3f} f1 {f1:.3f} scale {scaler.get_scale()}"
        )
        if validation < best:
            best, waited = validation, 0
            torch.save(model.state_dict(), "best.pt")
        elif (waited := waited + 1) > 5:
            break


if __name__ == "__main__":
    main()
