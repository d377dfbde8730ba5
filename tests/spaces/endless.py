"""Reports a slowly falling loss until it is stopped."""

import time

from ray import tune

from tuner.space import Space


def train(config):
    for step in range(1, 10_000):
        time.sleep(0.1)
        tune.report({"loss": config["x"] / step})


space = Space(params={"x": tune.uniform(1, 2)}, train=train, max_epochs=10_000, num_samples=50)
