"""A function that gets into every trouble that its parameter names, and otherwise reports five times."""

import os
import time

from ray import tune

from tuner.space import Space


def train(config):
    if config["trouble"] == "silent":
        return
    for epoch in range(1, 6):
        loss = 1.0 / epoch + config["x"]
        if epoch == 2:
            match config["trouble"]:
                case "raises":
                    raise KeyError("a bug of the user's")
                case "nan":
                    loss = float("nan")
                case "inf":
                    loss = float("inf")
                case "unnamed":
                    tune.report({"other": loss})
                    continue
                case "prints":
                    for _ in range(300):
                        print("x" * 50_000)
                case "dies":
                    os._exit(7)
        try:
            tune.report({"loss": loss, "pid": os.getpid()})
        finally:
            if config["trouble"] == "slow":
                time.sleep(1.0)
        if config["trouble"] == "greedy" and epoch == 2:
            while True:
                try:
                    time.sleep(0.05)
                    tune.report({"loss": loss})
                except BaseException:
                    continue


TROUBLES = ["none", "raises", "nan", "inf", "unnamed", "silent", "greedy", "slow", "prints", "dies", "last"]

space = Space(
    params={"trouble": tune.grid_search(TROUBLES), "x": tune.uniform(0, 1)},
    train=train,
    max_epochs=5,
    num_samples=1,
)
