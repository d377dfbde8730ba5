"""Trains one setting again, without Ray: `python -m tuner.train results/NAME/best/config.json`, or any trial's:
`python -m tuner.train results/NAME --trial 00007`.

Prints the metrics of each epoch, which on a CPU are those of the search to the last digit, then those on the test
part of the epoch that the search found best.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.answer import config_of, figures, setting
from tuner.errors import RequestError, nearest
from tuner.results import ExperimentRecord, load
from tuner.space import find_space

if TYPE_CHECKING:
    from tuner.training.data import Splits
    from tuner.training.loop import Training


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    if not argv or {"-h", "--help"} & set(argv):
        usage = "usage: python -m tuner.train CONFIG | EXPERIMENT --trial ID"
        print(f"{usage}\n\n{__doc__}", file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    try:
        retrain(asked_for(argv))
    except (RequestError, ValueError) as error:
        print(f"tuner: error: {error}", file=sys.stderr)
        return 2
    return 0


def asked_for(argv: list[str]) -> dict[str, Any]:
    """The setting that the command line names; RequestError where it names none."""
    match argv:
        case [path]:
            return load_config(Path(path))
        case [folder, "--trial", trial] | ["--trial", trial, folder]:
            return trial_config(load(Path(folder)), trial)
    raise RequestError("give a best/config.json, or an experiment's folder with --trial ID (see --help)")


def trial_config(record: ExperimentRecord, trial_id: str) -> dict[str, Any]:
    """What best/config.json would hold were this trial the winner; RequestError where there is no such trial."""
    known = {trial.id: trial for trial in record.trials}
    if trial_id not in known:
        ids = f"{record.trials[0].id}..{record.trials[-1].id}" if record.trials else "none"
        raise RequestError(f"--trial {trial_id}: {record.experiment.name} has {ids}{nearest(trial_id, known)}")
    if not record.experiment.space:
        raise RequestError(f"{record.experiment.folder} was not made by tuner: its space is not known")
    trial, experiment = known[trial_id], record.experiment
    best = trial.best(experiment.metric, experiment.mode)
    last = trial.reports[-1].epoch if trial.reports else 0
    shares = {f"{name.lower()}s": float(trial.resources.get(name) or 0) for name in ("CPU", "GPU")}
    sha256 = record.facts.get("space", {}).get("sha256", "")
    return config_of(experiment, trial, best.epoch if best else last, sha256=sha256, **shares)


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
    training, splits = training_of(given)
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


def training_of(given: dict[str, Any]) -> tuple[Training, Splits]:
    """The setting as its trial trained it, at epoch 0, with its data.

    Raises:
        RequestError: the space is gone, or a function that only Ray Tune can call.
    """
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
    return training, splits


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
