"""A function whose bug shows at epoch 2: FACTOR is no number until someone corrects it."""

from ray import tune

from tuner.space import Space

FACTOR = "two"


def train(config):
    for epoch in range(1, 4):
        loss = config["x"] / epoch
        if epoch == 2:
            loss = loss / FACTOR
        tune.report({"loss": loss})


space = Space(params={"x": tune.uniform(1, 2)}, train=train, max_epochs=3, num_samples=6)
