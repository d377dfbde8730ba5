"""Trials that lose their worker, poison it, fall silent or end it, each in one way and at one epoch."""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from ray import tune
from ray.exceptions import RayActorError

from tuner.space import Space


def train(config):
    trial = tune.get_context()
    folder = Path(trial.get_trial_dir())
    epoch = 0
    if config["saves"] and tune.get_checkpoint():
        with tune.get_checkpoint().as_directory() as saved:
            epoch = int((Path(saved) / "epoch").read_text())
    marks = Path(config["marks"])
    while epoch < 5:
        epoch += 1
        mark = marks / f"{trial.get_trial_id()}-{epoch}"
        times = len(list(marks.glob(f"{mark.name}-*")))
        (marks / f"{mark.name}-{times}").touch()
        trouble(config["trouble"], epoch, times, folder)
        report = {"loss": 1 / epoch + config["x"], "process": os.getpid()}
        if not config["saves"]:
            tune.report(report)
            continue
        with tempfile.TemporaryDirectory() as saving:
            (Path(saving) / "epoch").write_text(str(epoch))
            tune.report(report, checkpoint=tune.Checkpoint.from_directory(saving))


def trouble(name, epoch, times, folder):
    if epoch != 3:
        return
    if name == "killed once" and times == 0 or name == "killed always":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "lost once" and times == 0:
        raise RayActorError(error_msg="killed")  # what Ray's driver is told of a worker that was killed
    if name == "poisoned once" and times == 0 or name == "poisoned always":
        raise RuntimeError("CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA`")
    if name == "a bug":
        raise KeyError("a bug of the user's")
    if name == "hangs":
        time.sleep(1000)
    if name == "exits":
        sys.exit(3)
    if name == "exits well":
        sys.exit(0)


def space_of(troubles, marks, saves=True):
    params = {"trouble": tune.grid_search(troubles), "x": tune.choice([0.5])}
    params |= {"marks": tune.choice([str(marks)]), "saves": tune.choice([saves])}
    return Space(params=params, train=train, max_epochs=5, num_samples=1)


space = space_of(["none"], tempfile.gettempdir())
