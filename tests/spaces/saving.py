"""A function that keeps its state with `torch.save`, in two files, one of them in a folder of its own."""

import os
import tempfile
import time
from pathlib import Path

import torch
from ray import tune

from tuner.space import Space


def train(config):
    """Halves the distance to 1 in each epoch; a lost or older state shows in every later loss."""
    epoch, weights = 0, torch.zeros(1000, dtype=torch.float64)
    if saved := tune.get_checkpoint():
        with saved.as_directory() as folder:
            epoch = torch.load(Path(folder) / "epoch.pt")
            weights = torch.load(Path(folder) / "inner" / "weights.pt")
    while epoch < 8:
        time.sleep(float(os.environ.get("EPOCH_S", "0.3")))
        epoch += 1
        weights += (1 - weights) * config["lr"] / 2
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "inner").mkdir()
            torch.save(epoch, Path(folder) / "epoch.pt")
            torch.save(weights, Path(folder) / "inner" / "weights.pt")
            loss = float((1 - weights).square().mean())
            tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_directory(folder))


space = Space(params={"lr": tune.uniform(0.1, 1)}, train=train, max_epochs=8, num_samples=6, mutable=("lr",))
