"""Small functions, each of which reports when and what a test needs."""

import os
import sys
import time
from pathlib import Path

import ray
from ray import tune

import tuner
from tuner.space import Space

X = {"x": tune.uniform(0, 1)}


def at_once(config):
    tune.report({"loss": 1.0})


space = Space(params={**X, "width": tune.choice([1, 2])}, train=at_once, max_epochs=4)
# With a parameter that only the random searcher can propose.
derived = Space(params={**X, "half": tune.sample_from(lambda spec: spec.config.x / 2)}, train=at_once)


def report_until_stopped(config):
    for step in range(1, 10_000):
        time.sleep(0.1)
        tune.report({"loss": (1 + config["x"]) / step})


endless = Space(params=X, train=report_until_stopped, max_epochs=10_000, num_samples=50)


def report_twice(config):
    tune.report({"loss": 1 + config["x"]})
    time.sleep(float(os.environ.get("EPOCH_S", "0")))
    tune.report({"loss": config["x"]})


hours = Space(params=X, train=report_twice, max_epochs=2, num_samples=2)


def report_interpreter(config):
    """Which Python, and whose packages, a worker runs on."""
    return {"loss": config["x"], "prefix": sys.prefix, "tuner": tuner.__file__, "ray": ray.__file__}


interpreter = Space(params=X, train=report_interpreter, max_epochs=1)


def report_gpus(config):
    """Which GPUs a trial sees and when; two trials run long enough to overlap."""
    for _ in range(2):
        begun = time.time()
        time.sleep(0.5)
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        # Without the variable, CUDA would show all devices.
        ids = range(8) if shown is None else [int(index) for index in shown.split(",") if index]
        code = sum(1 << index for index in ids)
        node = int(os.environ["RAY_RAYLET_PID"])
        tune.report({"loss": config["x"], "visible": code, "begun": begun, "ended": time.time(), "on_node": node})


visible = Space(params=X, train=report_gpus, max_epochs=2)


class Late:
    """Takes 2 s to be loaded by the second worker that starts; each worker leaves a file in the folder LATE."""

    def __reduce__(self):
        return begin, (os.environ.get("LATE"), os.getpid())


def begin(folder, driver):
    if os.getpid() != driver:
        first = not any(Path(folder).iterdir())
        Path(folder, str(os.getpid())).touch()
        time.sleep(0 if first else 2)
    return Late()


LATE = Late()


def report_late(config):
    assert isinstance(LATE, Late)
    time.sleep(0.05)
    tune.report({"loss": config["x"]})


late = Space(params=X, train=report_late, max_epochs=1)
CLEAR = "\x1b[2J\x1b]0;owned\x07\u202e\r\x9b31m"  # would steer a terminal


def steer(config):
    print(f"output {CLEAR}")
    if config["fails"]:
        raise ValueError(f"no{CLEAR} such\nthing")
    tune.report({"loss": 1.0, f"other{CLEAR}": 2.0, "accuracy": f"text{CLEAR}"})


STEERING = {f"name{CLEAR}": tune.choice([f"value{CLEAR}"]), "fails": tune.grid_search([False, True])}
steering = Space(params=STEERING, train=steer, max_epochs=1, num_samples=1)


def report_noisy(config):
    """As noisy as its seed says: the only part of a value that another trial of the same setting changes."""
    noise = (config["seed"] % 1000) / 1000
    for epoch in (1, 2):
        tune.report({"loss": config["x"] + noise / epoch})


noisy = Space(params=X, train=report_noisy, max_epochs=2, num_samples=4, seeded=True)
unseeded = Space(params=X, train=report_twice, max_epochs=2, num_samples=3)


def accurate_at_end(config):
    """Reports the loss of each epoch; returns the accuracy after them."""
    for step in range(1, 5):
        tune.report({"loss": config["x"] + 1 / step})
    return {"accuracy": 1 - config["x"]}


accurate = Space(
    params=X, train=accurate_at_end, metric="accuracy", mode="max", prune_by="loss", max_epochs=4, num_samples=6
)


def never_accurate(config):
    for step in range(1, 5):
        tune.report({"loss": config["x"] + 1 / step})


silent = Space(params=X, train=never_accurate, metric="acc", mode="max", prune_by="loss", max_epochs=4, num_samples=9)
