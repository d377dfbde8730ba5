"""A function written for Ray Tune, unchanged: no images, no torch; for a first try."""

from ray import tune


def train(config):
    """Reports a loss that falls towards (x - 3)^2, faster with a larger `speed`; similar to Ray Tune's quick-start."""
    for step in range(1, 101):
        tune.report({"loss": (config["x"] - 3) ** 2 + config["noise"] / (config["speed"] * step)})


from tuner.space import Space  # noqa: E402  (the function above needs nothing of this project)

space = Space(
    params={
        "x": tune.uniform(-10, 10),
        "speed": tune.loguniform(0.1, 10),
        "noise": tune.choice([0.5, 1.0, 2.0]),
    },
    train=train,
    max_epochs=27,
    num_samples=20,
    reduction_factor=3,
)
