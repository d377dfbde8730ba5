"""Trains one setting again, without Ray: `python -m tuner.train results/NAME/best/config.json`, or any trial's:
`python -m tuner.train results/NAME --trial 00007`.

Prints the metrics of each epoch, which on a CPU are those of the search to the last digit, then those on the test
part of the epoch that the search found best.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.drive.answer import config_of
from tuner.drive.trust import HELP, OPTION, code_of
from tuner.errors import RequestError, nearest, say
from tuner.record.files import json_in
from tuner.record.results import ExperimentRecord, load
from tuner.record.saved_experiment import FILE
from tuner.spec.spaces import find_space
from tuner.training.task import Task
from tuner.views.labels import figures, setting

if TYPE_CHECKING:
    from tuner.training.data import Splits
    from tuner.training.group import Group
    from tuner.training.loop import Training


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    if not argv or {"-h", "--help"} & set(argv):
        usage = f"usage: python -m tuner.train (CONFIG | EXPERIMENT --trial ID) [{OPTION}]\n\n{OPTION}: {HELP}"
        print(f"{usage}\n\n{__doc__}", file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    try:
        given, folder, file = asked_for([word for word in argv if word != OPTION])
        sha256 = given.get("space_sha256")
        say(*code_of(folder, file, given["space"], sha256, trusted=OPTION in argv))
        retrain(given)
    except (RequestError, ValueError) as error:
        print(f"tuner: error: {error}", file=sys.stderr)
        return 2
    return 0


def asked_for(argv: list[str]) -> tuple[dict[str, Any], Path, str]:
    """The setting that the command line names, and the folder and file that have it; RequestError where none has."""
    match argv:
        case [name]:
            return load_config(path := Path(name)), path.parent, path.name
        case [name, "--trial", trial] | ["--trial", trial, name]:
            record = load(Path(name))
            return trial_config(record, trial), record.experiment.folder, FILE
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
        whole = path.resolve()  # the user names it, so it may be a link
        config = json_in(whole.parent, whole.name)
        missing = {"space", "config", "trial", "epoch", "max_epochs", "seed", "cpus", "gpus"} - set(config)
    except (OSError, ValueError, TypeError) as error:
        raise RequestError(f"{path}: {error}; give the best/config.json of an experiment") from None
    if missing:
        raise RequestError(f"{path} has no {', '.join(sorted(missing))}; give the best/config.json of an experiment")
    return dict(config)


def retrain(given: dict[str, Any]) -> None:
    """Trains the setting for all its epochs and prints what it reaches."""
    test = None
    with training_of(given) as (training, splits):
        say(f"{given['space']}: {setting(given['config'])}")
        while training.epoch < given["max_epochs"]:
            report = training.run_epoch()
            say(f"epoch {training.epoch}/{given['max_epochs']}: {figures(report)}")
            if training.epoch == given["epoch"] and splits.test is not None:
                test = tested(given, training, splits)
    if test:
        say(f"test, after epoch {given['epoch']}, which the search found best: {figures(test)}")
    if splits.notice:
        say(f"NOTE: {splits.notice}")


@contextlib.contextmanager
def training_of(given: dict[str, Any], state: bytes | None = None) -> Iterator[tuple[Training | Group, Splits]]:
    """The setting as its trial trained it, in as many processes, with its data; ended when it is left.

    Args:
        state: a checkpoint's content to go on from; None = from the start.

    Raises:
        RequestError: the space is gone, or a function that only Ray Tune can call.
    """
    import torch

    found = find_space(given["space"])
    if found.space.task is None:
        raise RequestError(f"space {given['space']!r} is a function for Ray Tune: call it with {given['config']}")
    task, splits = material(given)
    if given.get("strategy") == "ddp":
        with in_workers(given, state) as group:
            yield group, splits
        return
    with contextlib.closing(built(given, task, splits)) as training:
        if state is not None:
            saved = torch.load(io.BytesIO(state), weights_only=True, map_location=training.device)
            training.load_state_dict(saved["training"])
        yield training, splits


@contextlib.contextmanager
def in_workers(given: dict[str, Any], state: bytes | None) -> Iterator[Group]:
    """As many processes as the trial had, which train it."""
    from tuner.drive.trial import trial_seed
    from tuner.training.group import Setting
    from tuner.training.launch import Processes

    begun = Setting(
        given["config"],
        trial_seed(given["seed"], given["trial"]),
        given["max_epochs"],
        given.get("precision", "fp32"),
        given.get("on_oom", "shrink"),
        state,
    )
    num_threads = max(1, int(given["cpus"] / given["workers"]))
    with Processes(partial(material, given), given["workers"], num_threads, use_cuda=bool(given["gpus"])) as group:
        group.begin(begun)
        yield group


def tested(given: dict[str, Any], training: Training | Group, splits: Splits) -> dict[str, float]:
    """The figures on the test part, as the search takes them: by one process, whose sums have an order of their own."""
    import torch

    from tuner.training.loop import Training

    assert splits.test is not None
    if isinstance(training, Training):
        return training.evaluate(splits.test)
    task = find_space(given["space"]).space.task
    assert task is not None
    with contextlib.closing(built({**given, "strategy": "single", "gpus": 0}, task, splits)) as tester:
        tester.load_state_dict(
            torch.load(io.BytesIO(training.state()), weights_only=True, map_location="cpu")["training"]
        )
        return tester.evaluate(splits.test)


def state_of(training: Training | Group, **others: Any) -> bytes:
    """A checkpoint's content, for `training_of` to go on from, with `others` beside it."""
    import torch

    from tuner.training.loop import Training

    if not isinstance(training, Training):
        return training.state(**others)
    saved = io.BytesIO()
    torch.save({"training": training.state_dict(), **others}, saved)
    return saved.getvalue()


def material(given: dict[str, Any]) -> tuple[Task, Splits]:
    """The task and its data, split as in the search."""
    from tuner.training.data import hold_out

    task = find_space(given["space"]).space.task
    assert task is not None
    splits = task.data(Path(given["data_dir"]) if given.get("data_dir") else None)
    return task, hold_out(splits, fraction=task.validation_fraction, seed=given["seed"])


def built(given: dict[str, Any], task: Task, splits: Splits) -> Training:
    """The training of one process."""
    import torch

    from tuner.drive.trial import trial_seed
    from tuner.training.loop import Training
    from tuner.training.parallel import Worker

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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
