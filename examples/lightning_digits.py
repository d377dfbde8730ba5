"""A Lightning module that tells drawn bars from each other; random data, nothing is downloaded.

Three lines differ from a script of Lightning's own: the import of `TunerCallback`, `callbacks=[TunerCallback()]`, and
`ckpt_path=TunerCallback.checkpoint()`.
"""

import lightning as L
import torch
from ray import tune
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tuner.integrations.lightning import TunerCallback
from tuner.space import Space


class Digits(L.LightningModule):
    def __init__(self, width, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 8))

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        scores = self.net(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(scores, batch[1]))
        self.log("val_accuracy", (scores.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


def digits(size, seed):
    stream = torch.Generator().manual_seed(seed)
    labels = torch.randint(8, (size,), generator=stream)
    images = torch.randn(size, 8, 8, generator=stream)
    images[torch.arange(size), labels] += 1  # class i has a bright row i
    return TensorDataset(images, labels)


def train(config):
    L.seed_everything(0, verbose=False)
    loaders = DataLoader(digits(512, 0), config["batch_size"], shuffle=True), DataLoader(digits(256, 1), 256)
    trainer = L.Trainer(max_epochs=4, accelerator="cpu", callbacks=[TunerCallback()])
    trainer.fit(Digits(config["width"], config["lr"]), *loaders, ckpt_path=TunerCallback.checkpoint())


space = Space(
    params={"width": tune.choice([16, 64]), "lr": tune.loguniform(1e-3, 1e-1), "batch_size": tune.choice([32, 64])},
    train=train,
    metric="val_loss",
    max_epochs=4,
    num_samples=4,
)
