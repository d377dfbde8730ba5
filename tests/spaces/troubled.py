"""Trials that get into the trouble that a parameter names, in epoch 3 of five, and write each start of an epoch."""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from ray import tune
from ray.exceptions import RayActorError

from tuner.space import Space

TROUBLES, SAVES = ["none"], False  # a test puts its own in their place


def train(config):
    folder, trouble, epoch = Path(tune.get_context().get_trial_dir()), config["trouble"], 0
    if tune.get_checkpoint():
        with tune.get_checkpoint().as_directory() as saved:
            epoch = int((Path(saved) / "epoch").read_text())
    while epoch < 5 and trouble != "silent":
        epoch += 1
        with (folder / "begun").open("a") as begun:
            print(epoch, file=begun)
        is_first = (folder / "begun").read_text().split().count(str(epoch)) == 1
        report = {"loss": 1 / epoch + config["x"], "process": os.getpid()}
        if epoch == 3:
            report = troubled(report, trouble.removesuffix(" once") if is_first else trouble)
        with tempfile.TemporaryDirectory() as saving:
            (Path(saving) / "epoch").write_text(str(epoch))
            try:
                tune.report(report, checkpoint=tune.Checkpoint.from_directory(saving) if SAVES else None)
            finally:
                time.sleep(1.0 if trouble == "slow" else 0.0)


def troubled(report, trouble):
    """Gets into the trouble; returns what is reported if that is all."""
    match trouble:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "lost":
            raise RayActorError(error_msg="killed")  # what Ray's driver is told of a worker that was killed
        case "poisoned":
            raise RuntimeError("CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA`")
        case "raises":
            raise KeyError("a bug of the user's")
        case "hangs":
            time.sleep(1000)
        case "exits":
            sys.exit(3)
        case "exits well":
            sys.exit(0)
        case "dies":
            os._exit(7)
        case "prints":
            for _ in range(300):
                print("x" * 50_000)
        case "greedy":
            while True:
                try:
                    time.sleep(0.05)
                    tune.report(report)
                except BaseException:
                    continue
        case "nan" | "inf":
            return {"loss": float(trouble)}
        case "unnamed":
            return {"other": 1.0}
    return report


space = Space(
    params={"trouble": tune.grid_search(TROUBLES), "x": tune.uniform(0, 1)}, train=train, max_epochs=5, num_samples=1
)
