"""Names, values, metrics, output and errors that would steer a terminal."""

from ray import tune

from tuner.space import Space

CLEAR = "\x1b[2J\x1b]0;owned\x07\u202e\r\x9b31m"


def train(config):
    print(f"output {CLEAR}")
    if config["fails"]:
        raise ValueError(f"no{CLEAR} such\nthing")
    tune.report({"loss": 1.0, f"other{CLEAR}": 2.0, "accuracy": f"text{CLEAR}"})


space = Space(
    params={f"name{CLEAR}": tune.choice([f"value{CLEAR}"]), "fails": tune.grid_search([False, True])},
    train=train,
    max_epochs=1,
    num_samples=1,
)
