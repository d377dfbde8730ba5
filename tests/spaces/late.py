"""A function whose second worker takes long to start; each that begins to leaves a file in the folder LATE."""

import os
import time
from pathlib import Path

from ray import tune

from tuner.space import Space


class Late:
    """Loaded once a worker, when it starts."""

    def __reduce__(self):
        return begin, (os.environ.get("LATE", "."),)


def begin(folder):
    first = not any(Path(folder).iterdir())
    Path(folder, str(os.getpid())).touch()
    if not first:
        time.sleep(2)


late = Late()


def train(config):
    assert late is None  # here, what `begin` returned
    time.sleep(0.05)
    tune.report({"loss": config["x"]})


space = Space(params={"x": tune.uniform(0, 1)}, train=train, max_epochs=1)
