"""Nested parameters, one of which depends on another, as Ray Tune's users write them."""

import numpy as np
from ray import tune

from tuner.space import Space


def train(config):
    yield {"loss": 1.0 / config["net"]["width"]}
    yield {"loss": 0.5 / config["net"]["width"]}


space = Space(
    params={
        "net": {
            "width": tune.sample_from(lambda _: 2 ** np.random.randint(2, 9)),
            "act": tune.choice(["relu", "gelu"]),
        },
        "half": tune.sample_from(lambda spec: spec.config.net.width // 2),
    },
    train=train,
    max_epochs=2,
    num_samples=4,
)
