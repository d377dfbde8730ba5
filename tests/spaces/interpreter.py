"""Reports which Python, and whose packages, a worker runs on."""

import sys

import ray
from ray import tune

import tuner
from tuner.space import Space


def train(config):
    return {"loss": config["x"], "prefix": sys.prefix, "tuner": tuner.__file__, "ray": ray.__file__}


space = Space(params={"x": tune.uniform(0, 1)}, train=train, max_epochs=1)
