"""Small models on a GPU of 64 MiB: one fits, one exceeds half of it, one batch must shrink."""

import os

import numpy as np
import torch
from ray import tune

from tuner.space import Space, Task
from tuner.training.data import Arrays, Splits

CASES = ["fits"] * 4  # of each setting
NUM_TRAIN = int(os.environ.get("ON_GPUS_TRAIN", "1000"))  # `test_on_gpu.py` trains longer on a real device
WIDTHS = {"fits": 16, "beyond": 3_000_000, "shrinks": 9000}


def blobs(data_dir):
    stream = np.random.default_rng(7)
    targets = stream.integers(0, 2, NUM_TRAIN + 100)
    inputs = (stream.normal(size=(len(targets), 4)) + 1.5 * targets[:, None]).astype(np.float32)
    return Splits(Arrays(inputs[:-100], targets[:-100]), Arrays(inputs[-100:], targets[-100:]))


def model(config):
    width = WIDTHS[CASES[config["number"]]]
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))


space = Space(
    params={"number": tune.grid_search(list(range(len(CASES))))},
    task=Task(
        data=blobs,
        model=model,
        optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        metrics={"process": lambda outputs, targets: float(os.getpid())},
        batch_size=1000,
    ),
    max_epochs=3,
    num_samples=len(CASES),
)
