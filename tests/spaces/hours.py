"""Two reports, the second after as many seconds as EPOCH_S says."""

import os
import time

from ray import tune

from tuner.space import Space


def train(config):
    tune.report({"loss": 1 + config["x"]})
    time.sleep(float(os.environ.get("EPOCH_S", "0")))
    tune.report({"loss": config["x"]})


space = Space(params={"x": tune.uniform(0, 1)}, train=train, max_epochs=2, num_samples=2)
