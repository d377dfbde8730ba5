"""A function whose second worker takes long to start; each that begins to leaves a file in the folder LATE."""

import os
import time
from pathlib import Path

from ray import tune

from tuner.space import Space


class Late:
    """Loaded by each worker when it starts, and by the driver."""

    def __reduce__(self):
        return begin, (os.environ.get("LATE", "."), os.getpid())


def begin(folder, driver):
    if os.getpid() != driver:
        first = not any(Path(folder).iterdir())
        Path(folder, str(os.getpid())).touch()
        time.sleep(0 if first else 2)
    return Late()


late = Late()


def train(config):
    assert isinstance(late, Late)
    time.sleep(0.05)
    tune.report({"loss": config["x"]})


space = Space(params={"x": tune.uniform(0, 1)}, train=train, max_epochs=1)
