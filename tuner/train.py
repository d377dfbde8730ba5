"""Trains one setting again, without Ray: `python -m tuner.train results/NAME/best/config.json`.

Prints the metrics of each epoch, which on a CPU are those of the search to the last digit, then those on the test
part of the epoch that the search found best.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.answer import figures, setting
from tuner.errors import RequestError
from tuner.space import Task, find_space

if TYPE_CHECKING:
    from tuner.training.data import Splits
    from tuner.training.group import Group
    from tuner.training.loop import Training


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
    if found.sha256 != given.get("space_sha256", found.sha256):
        print(f"NOTE: {found.path} has changed since the search; the figures may differ")
    print(f"{given['space']}: {setting(given['config'])}")
    task, splits = material(given)
    train = in_workers if given.get("strategy") == "ddp" else in_this_process
    test = train(given, task, splits)
    if test:
        print(f"test, after epoch {given['epoch']}, which the search found best: {figures(test)}")
    if splits.notice:
        print(f"NOTE: {splits.notice}")


def material(given: dict[str, Any]) -> tuple[Task, Splits]:
    """The task and its data, split as in the search."""
    from tuner.training.data import hold_out

    task = find_space(given["space"]).space.task
    assert task is not None
    splits = task.data(Path(given["data_dir"]) if given.get("data_dir") else None)
    return task, hold_out(splits, fraction=task.validation_fraction, seed=given["seed"])


def in_this_process(given: dict[str, Any], task: Task, splits: Splits) -> dict[str, float] | None:
    """Trains; returns the figures on the test part, if there is one."""
    training = built(given, task, splits)
    test = None
    for epoch in epochs(given, training):
        if epoch == given["epoch"] and splits.test is not None:
            test = training.evaluate(splits.test)
    return test


def in_workers(given: dict[str, Any], task: Task, splits: Splits) -> dict[str, float] | None:
    """As `in_this_process`, in as many processes as the trial had."""
    import torch

    from tuner.training.group import Setting
    from tuner.training.launch import Processes
    from tuner.trial import trial_seed

    setting = Setting(
        given["config"],
        trial_seed(given["seed"], given["trial"]),
        given["max_epochs"],
        given.get("precision", "fp32"),
        given.get("on_oom", "shrink"),
    )
    num_workers = given["workers"]
    test = None
    num_threads = max(1, int(given["cpus"] / num_workers))
    with Processes(partial(material, given), num_workers, num_threads, use_cuda=bool(given["gpus"])) as group:
        group.begin(setting)
        for epoch in epochs(given, group):
            if epoch == given["epoch"] and splits.test is not None:
                # As the search does it: by one process, whose sums have another order than those of several.
                tester = built({**given, "strategy": "single", "gpus": 0}, task, splits)
                tester.load_state_dict(torch.load(io.BytesIO(group.state()), map_location="cpu")["training"])
                test = tester.evaluate(splits.test)
    return test


def built(given: dict[str, Any], task: Task, splits: Splits) -> Training:
    """The training of one process."""
    import torch

    from tuner.training.loop import Training
    from tuner.training.parallel import Worker
    from tuner.trial import trial_seed

    torch.set_num_threads(max(1, int(given["cpus"])))
    return Training(
        task,
        given["config"],
        splits,
        seed=trial_seed(given["seed"], given["trial"]),
        max_epochs=given["max_epochs"],
        device="cuda" if given["gpus"] else "cpu",
        precision=given.get("precision", "fp32"),
        on_oom=given.get("on_oom", "shrink"),
        worker=Worker(given.get("strategy", "single"), num_devices=max(1, int(given["gpus"]))),
    )


def epochs(given: dict[str, Any], training: Training | Group) -> Iterator[int]:
    """Trains epoch after epoch, prints each report and yields the epoch's number."""
    while training.epoch < given["max_epochs"]:
        report = training.run_epoch()
        print(f"epoch {training.epoch}/{given['max_epochs']}: {figures(report)}", flush=True)
        yield training.epoch


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
