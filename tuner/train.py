"""Trains one setting again, without Ray: `python -m tuner.train results/NAME/best/config.json`.

Prints the metrics of each epoch, which on a CPU are those of the search to the last digit, then those on the test
part of the epoch that the search found best.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tuner.answer import figures, setting
from tuner.errors import RequestError
from tuner.space import find_space


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    if len(argv) != 1 or argv[0] in ("-h", "--help"):
        print(f"usage: python -m tuner.train CONFIG\n\n{__doc__}", file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    try:
        retrain(load_config(Path(argv[0])))
    except (RequestError, ValueError) as error:
        print(f"tuner: error: {error}", file=sys.stderr)
        return 2
    return 0


def load_config(path: Path) -> dict[str, Any]:
    """Reads best/config.json; RequestError where it is none."""
    try:
        config = json.loads(path.read_text())
        missing = {"space", "config", "trial", "epoch", "max_epochs", "seed", "cpus", "gpus"} - set(config)
    except (OSError, ValueError, TypeError) as error:
        raise RequestError(f"{path}: {error}; give the best/config.json of an experiment") from None
    if missing:
        raise RequestError(f"{path} has no {', '.join(sorted(missing))}; give the best/config.json of an experiment")
    return dict(config)


def retrain(given: dict[str, Any]) -> None:
    """Trains the setting for all its epochs and prints what it reaches."""
    found = find_space(given["space"])
    if found.space.task is None:
        raise RequestError(f"space {given['space']!r} is a function for Ray Tune: call it with {given['config']}")
    import torch

    from tuner.training.data import hold_out
    from tuner.training.loop import Training
    from tuner.trial import trial_seed

    task = found.space.task
    if found.sha256 != given.get("space_sha256", found.sha256):
        print(f"NOTE: {found.path} has changed since the search; the figures may differ")
    splits = task.data(Path(given["data_dir"]) if given.get("data_dir") else None)
    splits = hold_out(splits, fraction=task.validation_fraction, seed=given["seed"])
    torch.set_num_threads(max(1, int(given["cpus"])))
    training = Training(
        task,
        given["config"],
        splits,
        seed=trial_seed(given["seed"], given["trial"]),
        max_epochs=given["max_epochs"],
        device="cuda" if given["gpus"] else "cpu",
        precision=given.get("precision", "fp32"),
        on_oom=given.get("on_oom", "shrink"),
    )
    print(f"{given['space']}: {setting(given['config'])}")
    test = None
    while training.epoch < given["max_epochs"]:
        report = training.run_epoch()
        print(f"epoch {training.epoch}/{given['max_epochs']}: {figures(report)}", flush=True)
        if training.epoch == given["epoch"] and splits.test is not None:
            test = training.evaluate(splits.test)
    if test:
        print(f"test, after epoch {given['epoch']}, which the search found best: {figures(test)}")
    if splits.notice:
        print(f"NOTE: {splits.notice}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
