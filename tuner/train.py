"""Trains one setting of a search again, without Ray.

`python -m tuner.train results/NAME/best/config.json` trains the best setting, and
`python -m tuner.train results/NAME --trial 00007` trains the setting of trial 00007.

The command prints the metrics of each epoch. On the same CPU, they equal the search's metrics to the last digit, unless
population-based training changed the trial, memory ran out, or the Task has compile=True. If there is a test part, the
command finally tests the model of the epoch that was best in the search, or last if no epoch had the searched metric.
`--save FILE` saves this model.
"""

from __future__ import annotations

import contextlib
import io
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import InterruptedEarly, Parser, RequestError, blamed, failed, nearest, say
from tuner.errors.users_code import place_of
from tuner.record.results import ExperimentRecord, load
from tuner.record.saved_experiment import COPY, FILE
from tuner.record.texts import figures, setting
from tuner.spec.spaces import find_space
from tuner.training.task import Task
from tuner.tuning.answer.best import load_config
from tuner.tuning.answer.writing import config_of, evaluate, spec_of, write_model
from tuner.tuning.resume.trust import HELP, OPTION, code_of, refuse_data_folder, results_of

if TYPE_CHECKING:
    from tuner.training.data import Splits
    from tuner.training.group import Group
    from tuner.training.loop import Training


def main(argv: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    parser = Parser(prog="python -m tuner.train", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("path", metavar="CONFIG|EXPERIMENT", help="a best/config.json, or an experiment's folder")
    parser.add_argument("--trial", metavar="ID", type=lambda word: word.zfill(5), help="the trial to train: 7 or 00007")
    parser.add_argument("--save", metavar="FILE", type=Path, help="save the model of the best epoch to FILE")
    parser.add_argument(OPTION, action="store_true", help=HELP)
    try:
        args = parser.parse_args(argv)
        path = Path(args.path)
        if args.trial is None:
            config, folder, files = load_config(path), path.parent, [path.name]
        else:
            record = load(path)
            config, folder, files = trial_config(record, args.trial), record.experiment.folder, [FILE, COPY]
        space, code = code_of(folder, (*files,), config["space"], config.get("space_sha256"), trusted=args.trust)
        if not args.trust:
            refuse_data_folder(folder / files[0], config["data_dir"] or "", results_of(folder), f"give {OPTION}")
        say(*code)
        retrain({**config, "space": space} | ({"data_sums": {}} if args.trust else {}), args.save)
    except (RequestError, ValueError, OSError) as error:
        return failed(error)
    except InterruptedEarly as error:
        say("", str(error), to=sys.stderr)
        return 130
    return 0


def trial_config(record: ExperimentRecord, trial_id: str) -> dict[str, Any]:
    """Returns what best/config.json would be if the trial were the best; RequestError for an unknown trial or space.

    If no epoch of the trial has the searched metric, `has_best` is False, and `epoch` is the last one.
    """
    known, experiment = {trial.id: trial for trial in record.trials}, record.experiment
    if trial_id not in known:
        ids = f"{record.trials[0].id}..{record.trials[-1].id}" if record.trials else "none"
        raise RequestError(f"--trial {trial_id}: {experiment.name} has trials {ids}{nearest(trial_id, known)}")
    if not experiment.space:
        raise RequestError(f"{experiment.folder} was not written by tuner, so its space is unknown")
    trial = known[trial_id]
    best = trial.best(experiment.aim)
    shares = {f"{name.lower()}s": float(trial.resources.get(name) or 0) for name in ("CPU", "GPU")}
    sha256 = record.facts.get("space", {}).get("sha256", "")
    config = config_of(record, trial, best.epoch if best else trial.last_epoch, sha256=sha256, **shares)
    return config | {"has_best": best is not None}


def retrain(config: dict[str, Any], save: Path | None = None) -> None:
    """Trains the setting for all epochs; prints each epoch's metrics, and the test metrics if there is a test part.

    If `save` is a path, saves the model after the setting's best epoch there, in the format of best/model.pt. If
    `has_best` is False, this is the model of its last epoch in the search, which is then tested, too.
    """
    import torch

    if save and (save.is_dir() or not save.parent.is_dir()):
        raise RequestError(f"--save {save}: give the path of a file in an existing folder")
    if save and not config["epoch"]:
        raise RequestError(f"--save {save}: trial {config['trial']} reported no epoch, so it has no best model")
    best = b""  # the state after the setting's best epoch in the search, or its last one if none has the metric
    which = "best" if config.get("has_best", True) else "last"
    with training_of(config) as (training, task, splits):
        say(f"{config['space']}: {setting(config['config'])}")
        epoch, most = config.get("shorter", (0, 0))
        if epoch and task.schedule:
            until = f"up to epoch {epoch}, the search trained it with a schedule for {most} epochs"
            say(f"NOTE: {until}; this command has one for {config['max_epochs']} from the start, so figures may differ")
        while training.epoch < config["max_epochs"]:
            report = training.run_epoch()
            if doubt := report.pop("doubt", ""):
                say(f"NOTE: {doubt}")
            say(f"epoch {training.epoch}/{config['max_epochs']}: {figures(report)}")
            if training.epoch == config["epoch"] and (save or splits.test is not None):
                best = training.state()
    if best:
        state = torch.load(io.BytesIO(best), weights_only=True, map_location="cpu")["training"]
        if save:
            write_model(state, save)
            say(f"{save}: the model after epoch {config['epoch']}, the setting's {which} in the search")
        if splits.test is not None:
            test, _ = evaluate(config, state, task, splits)  # as the search does
            say(f"test, after epoch {config['epoch']}, the setting's {which} in the search: {figures(test)}")
    if splits.notice:
        say(f"NOTE: {splits.notice}")


@contextlib.contextmanager
def training_of(config: dict[str, Any], saved: Path | None = None) -> Iterator[tuple[Training | Group, Task, Splits]]:
    """Yields a setting's training, with as many processes as its trial had, its task and the data.

    `config` is the content of best/config.json; `saved` is the state.pt to resume from (None = start at epoch 0).
    """
    import torch

    from tuner.training.group import Processes
    from tuner.training.loop import Training

    spec, (task, splits) = spec_of(config), material(config)
    state = saved.read_bytes() if saved else None
    reading = blamed(str(saved)) if saved else contextlib.nullcontext()
    if spec.strategy == "ddp":
        source = partial(material, config | {"data_sums": None})  # this process has compared the data
        processes = Processes(source, spec.num_workers, spec.num_threads, use_cuda=bool(spec.gpus))
        with contextlib.closing(processes) as group:
            with reading:
                group.begin(spec, state)
            yield group, task, splits
        return
    torch.set_num_threads(spec.num_threads)
    with contextlib.closing(Training(task, splits, spec)) as training:
        if state is not None:
            with reading:
                training.restore(state)
        yield training, task, splits


def material(config: dict[str, Any]) -> tuple[Task, Splits]:
    """Returns the task and its data, split as in the search.

    RequestError if the space has no Task, or the data is not that of the search by `data_sums` in the config.
    """
    from tuner.training.data_sums import refuse_other_data, sums_of
    from tuner.training.sources import splits_of

    task = find_space(config["space"]).space.task
    if task is None:
        what = f"this command needs a Space(task=...), and {config['space']!r} is a script or function"
        raise RequestError(f"{what}; train it as you did before the search, with {config['config']}")
    splits = splits_of(task, config.get("data_dir") or "", config["seed"])
    if before := config.get("data_sums"):
        refuse_other_data(before, sums_of(splits), f"the data function{place_of(task.data)}")
    return task, splits


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
