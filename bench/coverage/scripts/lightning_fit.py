"""Trains an autoencoder with Lightning; validates on larger batches, then tests."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(lightning.LightningModule):
    """Two linear layers each way."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 64))
        self.decoder = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 1024))

    def loss(self, batch):
        """How badly the batch is rebuilt."""
        return nn.functional.mse_loss(self.decoder(self.encoder(batch[0])), batch[0])

    def training_step(self, batch, _):
        """One batch."""
        return self.loss(batch)

    def validation_step(self, batch, _):
        """One batch."""
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch, _):
        """One batch."""
        self.log("test_loss", self.loss(batch))

    def configure_optimizers(self):
        """AdamW, one cycle over all steps."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        steps = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main():
    """Trains for 20 epochs."""
    data = TensorDataset(torch.randn(65536, 1024))
    trainer = lightning.Trainer(
        max_epochs=20, accumulate_grad_batches=4, check_val_every_n_epoch=5, logger=False, devices=1
    )
    model = Autoencoder()
    trainer.fit(model, DataLoader(data, 64, shuffle=True), DataLoader(data, 8192))
    trainer.test(model, DataLoader(data, 8192))


if __name__ == "__main__":
    main()
