"""A network that fits a line, trained with Accelerate; random data, nothing is downloaded.

Three lines differ from a script that saves to and resumes from a folder: the import of `tune`, `tune.get_checkpoint()`
in place of the folder to resume from, and `tune.report` in place of `print`.
"""

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from ray import tune
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tuner.space import Space

EPOCHS = 4


def points(size, seed):
    inputs = torch.randn(size, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def train(config):
    set_seed(0)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    net = nn.Sequential(nn.Linear(8, config["width"]), nn.ReLU(), nn.Dropout(0.1), nn.Linear(config["width"], 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=config["lr"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    loaders = DataLoader(points(512, 0), batch_size=32, shuffle=True), DataLoader(points(256, 1), batch_size=256)
    model, optimizer, schedule, training, validation = accelerator.prepare(net, optimizer, schedule, *loaders)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = tune.get_checkpoint()
        if checkpoint:
            accelerator.load_state(checkpoint.to_directory(folder))
        for epoch in range(schedule.scheduler.last_epoch, EPOCHS):
            training.set_epoch(epoch)
            model.train()
            for inputs, targets in training:
                optimizer.zero_grad()
                accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
                optimizer.step()
            schedule.step()
            model.eval()
            with torch.no_grad():
                loss = sum(nn.functional.mse_loss(model(inputs), targets) for inputs, targets in validation)
            accelerator.save_state(folder)
            tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_directory(folder))


space = Space(
    params={"width": tune.choice([16, 64]), "lr": tune.loguniform(1e-3, 1e-1)},
    train=train,
    max_epochs=EPOCHS,
    num_samples=4,
)
