"""The tiny space on a device that holds four examples at once while training, and in whatever precision is drawn."""

import dataclasses
import importlib.util
from pathlib import Path

import torch
from ray import tune

spec = importlib.util.spec_from_file_location("tiny", Path(__file__).with_name("tiny.py"))
tiny = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)

SETTING = {"width": tune.choice([4]), "lr": tune.choice([0.01]), "batch_size": tune.choice([16])}


class Scarce(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.model, self.most = tiny.space.task.model(config), config["most"]

    def forward(self, inputs):
        if self.training and len(inputs) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.model(inputs)


space = dataclasses.replace(
    tiny.space,
    params={**SETTING, "most": tune.grid_search([4, 1000])},
    task=dataclasses.replace(tiny.space.task, model=Scarce),
    num_samples=1,
    max_epochs=2,
    mutable=(),
)
mixed = dataclasses.replace(
    space,
    params={**SETTING, "most": tune.choice([1000]), "precision": tune.grid_search(["fp32", "bf16", "fp16"])},
)
