"""A function that saves no checkpoint. Never edit this file: recorded folders hold its sha256."""

import itertools
import os
import time

from ray import tune

from tuner.space import Space


def train(config):
    for epoch in itertools.count(1):
        time.sleep(float(os.environ.get("EPOCH_S", "0")))
        tune.report({"loss": config["x"] / epoch})


space = Space(params={"x": tune.uniform(1, 2)}, train=train, max_epochs=4, num_samples=4)
