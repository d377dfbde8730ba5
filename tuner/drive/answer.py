"""Writes the answer of a search: trials.csv, and the best trial with its test figures in `best/`."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.drive.best import CHECKPOINT, CONFIG, METRICS, MODEL, README, copy_checkpoint, readme
from tuner.record.checkpoints import STATE, damage, damage_in, within
from tuner.record.events import strict
from tuner.record.files import json_in, write_atomically
from tuner.record.records import Report, TrialRecord
from tuner.record.results import ExperimentRecord
from tuner.spec.parameters import merged
from tuner.spec.spaces import LoadedSpace, is_live
from tuner.training.trial_spec import TrialSpec, trial_seed
from tuner.views.labels import flat

if TYPE_CHECKING:
    from tuner.training.data import Splits

logger = logging.getLogger(__name__)

# A spreadsheet takes a text that starts with one of these for a formula; trials.csv marks such a text with a leading
# `'`. A text's own leading `'` is marked too, so that a reader can remove one from each text.
FORMULAS = tuple("=+-@\t\r\n'＝＋－＠")


@dataclass(frozen=True)
class Answer:
    """The best trial, its best report, and its figures on the test part (None if it was not tested)."""

    trial: TrialRecord
    report: Report
    test: dict[str, float] | None


def conclude(
    record: ExperimentRecord,
    loaded_space: LoadedSpace,
    splits: Splits | None,
    cpus: float,
    gpus: float,
    *,
    ended: bool = True,
) -> Answer | None:
    """Writes trials.csv and `best/`. Once the search has ended, tests the best model of a Task.

    `best/` needs a trial with a finite metric. `experiment.BEST_RULE` says which trial is best. If an extended search
    still has the same best trial and epoch, it keeps its test figures.

    Args:
        ended: whether the search has ended. The test part is not used before: a resumed search may find a better trial,
            and a user who interrupts a search should not wait.
    """
    folder = record.experiment.folder
    write_atomically(folder / "trials.csv", trials_csv(record))
    winner = whole_winner(record)
    if winner is None:
        return None
    trial, report = winner
    best = folder / "best"
    best.mkdir(exist_ok=True)
    config = config_of(record, trial, report.epoch, cpus=cpus, gpus=gpus, sha256=loaded_space.sha256)
    config |= loading_of(loaded_space, splits)
    test = tested_before(best, config)
    if splits is None:
        keep_checkpoint(record, report, best, config, ended=ended)
    elif report.checkpoint and test is not None:
        repair_model(within(folder, report.checkpoint), best)
    elif report.checkpoint:
        state = save_model(within(folder, report.checkpoint), best / MODEL)
        has_test = splits.test is not None and len(splits.test) > 0
        test = evaluate(loaded_space, config, state, splits) if ended and has_test else None
    write_atomically(best / README, readme(record.experiment.name, loaded_space.name, is_task=splits is not None))
    write_atomically(best / CONFIG, json.dumps(config, indent=2) + "\n")
    metrics = {"epoch": report.epoch, "validation": report.metrics, "test": test}
    if splits is not None and splits.notice:
        metrics["notice"] = splits.notice
    write_atomically(best / METRICS, json.dumps(strict(metrics), indent=2) + "\n")
    return Answer(trial, report, test)


def config_of(
    record: ExperimentRecord, trial: TrialRecord, epoch: int, *, cpus: float, gpus: float, sha256: str
) -> dict[str, Any]:
    """The content of best/config.json: everything needed to train this setting again.

    Args:
        epoch: the epoch whose model is in `best/`.
    """
    experiment = record.experiment
    return {
        "space": experiment.space,
        "config": merged(record.constants, trial.config),
        "trial": trial.id,
        "epoch": epoch,
        "max_epochs": experiment.max_epochs,
        "metric": experiment.metric,
        "mode": experiment.mode,
        "seed": experiment.seed,
        "cpus": cpus,
        "gpus": gpus,
        "precision": experiment.precision,
        "on_oom": experiment.on_oom,
        "strategy": experiment.strategy,
        "workers": experiment.workers_per_trial,
        "data_dir": experiment.data_dir,
        "space_sha256": sha256,
    }


def spec_of(config: dict[str, Any]) -> TrialSpec:
    """The TrialSpec of a best/config.json; files of older versions have fewer fields."""
    return TrialSpec(
        config=config["config"],
        seed=trial_seed(config["seed"], config["trial"]),
        max_epochs=config["max_epochs"],
        precision=config.get("precision", "fp32"),
        on_oom=config.get("on_oom", "shrink"),
        strategy=config.get("strategy", "single"),
        num_workers=config.get("workers", 1),
        cpus=config["cpus"],
        gpus=config["gpus"],
    )


def whole_winner(record: ExperimentRecord) -> tuple[TrialRecord, Report] | None:
    """Returns the best trial and its best report, or None; ignores reports whose checkpoint is damaged."""
    while (winner := record.best()) is not None:
        trial, report = winner
        path = within(record.experiment.folder, report.checkpoint) if report.checkpoint else None
        why = damage(path) if path is not None and path.exists() else ""
        if not why:
            break
        logger.warning("%s is damaged (%s): the answer is the best of the other checkpoints", path, why)
        left = replace(trial, reports=tuple(each for each in trial.reports if each is not report))
        record = replace(record, trials=tuple(left if each is trial else each for each in record.trials))
    return winner


def tested_before(best: Path, config: dict[str, Any]) -> dict[str, float] | None:
    """Returns the test figures in `best/` if it has this config's model (the test part is used once); else None."""
    try:
        test: dict[str, float] | None = json_in(best, METRICS)["test"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return test if is_same(best, config) else None


def is_same(best: Path, config: dict[str, Any]) -> bool:
    """Whether `best/` has the model of this config."""
    try:
        same = dict(json_in(best, CONFIG))
    except (OSError, ValueError, TypeError):
        return False
    return all(same.get(name) == config[name] for name in ("trial", "epoch", "config", "space_sha256", "seed"))


def keep_checkpoint(record: ExperimentRecord, report: Report, best: Path, config: dict[str, Any], ended: bool) -> None:
    """Copies a function's best checkpoint to `best/checkpoint` once the search has ended; removes an outdated copy."""
    if (best / CHECKPOINT).is_dir() and is_same(best, config):
        return
    source = within(record.experiment.folder, report.checkpoint) if report.checkpoint else None
    if ended and source and source.is_dir():
        copy_checkpoint(source, best)
    else:
        shutil.rmtree(best / CHECKPOINT, ignore_errors=True)  # it is of an earlier best trial


def loading_of(loaded_space: LoadedSpace, splits: Splits | None) -> dict[str, Any]:
    """What `load_best` needs beside the setting: the data's constants, and the script, if one defines the space."""
    needed: dict[str, Any] = {}
    if is_live(loaded_space.name) and loaded_space.path:
        needed["space_file"] = str(loaded_space.path)
    with contextlib.suppress(TypeError, ValueError):  # `load_best` reads constants that JSON cannot hold from the data
        if splits is not None:
            needed["data_constants"] = json.loads(json.dumps(dict(splits.constants), allow_nan=False))
    return needed


def save_model(checkpoint: Path, model_path: Path) -> dict[str, Any]:
    """Writes the model's state_dict from a checkpoint to a file; returns the whole state of the training."""
    import torch

    state: dict[str, Any] = torch.load(checkpoint / STATE, weights_only=True, map_location="cpu")["training"]
    saved = io.BytesIO()
    torch.save(state["model"], saved)
    write_atomically(model_path, saved.getvalue())
    return state


def repair_model(checkpoint: Path, best: Path) -> None:
    """Writes a missing or damaged `best/model.pt` again from the winner's checkpoint; if that is gone, says so."""
    damaged = damage_in(best, MODEL)
    if (best / MODEL).is_file() and not damaged:
        return
    what = f"{best / MODEL} {f'is damaged ({damaged})' if damaged else 'is missing'}"
    if (checkpoint / STATE).is_file():
        save_model(checkpoint, best / MODEL)
        logger.warning("%s; it was written again from the best trial's checkpoint", what)
    else:
        logger.warning("%s, and the best trial's checkpoint %s is gone; restore a copy of one", what, checkpoint)


def evaluate(
    loaded_space: LoadedSpace, config: dict[str, Any], state: dict[str, Any], splits: Splits
) -> dict[str, float]:
    """Returns the metrics of a training's state on the test part, computed on the CPU."""
    import torch

    from tuner.training.loop import Training

    assert loaded_space.space.task is not None and splits.test is not None  # only a task has splits
    # One process evaluates, with as many threads as the trial has CPUs, as in `tuner.train`. Another number of threads
    # would sum in another order and change the last digits.
    spec = replace(spec_of(config), strategy="single", num_workers=1, gpus=0)
    torch.set_num_threads(spec.num_threads)
    training = Training.of(loaded_space.space.task, splits, spec)
    with contextlib.closing(training):
        training.load_state_dict(state)
        return training.evaluate(splits.test)


def trials_csv(record: ExperimentRecord) -> str:
    """Returns trials.csv, with one row per trial: status, epochs, reason, error, parameters, best and last metrics.

    A spreadsheet would run a text that looks like a formula. So a text that starts with a character of `FORMULAS`, also
    in the header, gets a `'` in front. A program that reads the file must remove one leading `'` from each text.
    Numbers are unchanged.
    """
    out = io.StringIO()
    # Every text is quoted: the csv module alone would not quote a carriage return, which ends a row for some readers.
    rows = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    for row in trials_table(record):
        rows.writerow([f"'{each}" if isinstance(each, str) and each.startswith(FORMULAS) else each for each in row])
    return out.getvalue()


def trials_table(record: ExperimentRecord) -> Iterator[list[Any]]:
    """Yields the names of the columns of trials.csv, then one row per trial; None where a trial has no value."""
    metric, mode = record.experiment.metric, record.experiment.mode
    params = list(dict.fromkeys(name for trial in record.trials for name in flat(trial.config)))
    names = list(dict.fromkeys(name for t in record.trials for r in t.reports for name in r.metrics))
    head = ["trial", "status", "epochs", "seconds", "best_epoch", "rung", "reason", "error"]
    yield [*head, *params, *(f"best_{name}" for name in names), *(f"last_{name}" for name in names)]
    for trial in record.trials:
        best = trial.best(metric, mode)
        last = trial.reports[-1] if trial.reports else None
        stopped = [d for d in trial.decisions if d.action == "stop"]
        config = flat(trial.config)
        yield (
            [trial.id, trial.status, last.epoch if last else 0, trial.seconds, best.epoch if best else None]
            + [stopped[-1].rung if stopped else None, trial.reason]
            + [trial.errors[-1] if trial.errors else None, *(config.get(name) for name in params)]
            + [report.metrics.get(name) if report else None for report in (best, last) for name in names]
        )
