"""A LightningModule with training and validation steps; automatic or manual optimization."""

import argparse

import lightning
import torch
from torch import nn


class Classifier(lightning.LightningModule):
    def __init__(self, manual: bool) -> None:
        super().__init__()
        self.automatic_optimization = not manual
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(3072, 2048), nn.GELU(), nn.Linear(2048, 10))
        self.loss = nn.CrossEntropyLoss()

    def training_step(self, batch, index):
        images, labels = batch
        loss = self.loss(self.network(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
            optimizer.step()
            return None
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        self.log("accuracy", (self.network(images).argmax(-1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--manual", action="store_true")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    options = parser.parse_args()
    data = torch.utils.data.TensorDataset(torch.randn(256, 3, 32, 32), torch.randint(0, 10, (256,)))
    trainer = lightning.Trainer(
        max_epochs=2,
        precision=options.precision,
        accelerator="gpu",
        devices=options.devices,
        num_nodes=options.nodes,
        strategy=options.strategy,
        logger=False,
        enable_checkpointing=False,
        gradient_clip_val=None if options.manual else 1.0,
    )
    model = Classifier(options.manual)
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    trainer.fit(model, loader, torch.utils.data.DataLoader(data, batch_size=128))
    trainer.validate(model, torch.utils.data.DataLoader(data, batch_size=128))


if __name__ == "__main__":
    main()
