"""A function that reports at once; `derived` has a parameter that only the random searcher can propose."""

from ray import tune

from tuner.space import Space


def train(config):
    tune.report({"loss": 1.0})


space = Space(params={"x": tune.uniform(0, 1), "width": tune.choice([1, 2])}, train=train, max_epochs=4)
derived = Space(params={"x": tune.uniform(0, 1), "half": tune.sample_from(lambda spec: spec.config.x / 2)}, train=train)
