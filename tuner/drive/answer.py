"""The answer of a search: the best trial, tested once, in `best/` and trials.csv; and in words."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.record.checkpoints import STATE, damage, within
from tuner.record.files import json_in, write_atomically
from tuner.record.journal import strict
from tuner.record.records import Report, TrialRecord
from tuner.record.results import ExperimentRecord
from tuner.spec.experiment import Experiment
from tuner.spec.spaces import Found
from tuner.training.trial_spec import TrialSpec, trial_seed
from tuner.views.labels import flat

if TYPE_CHECKING:
    from tuner.training.data import Splits

logger = logging.getLogger(__name__)

FORMULAS = tuple(
    "=+-@\t\r\n'＝＋－＠"
)  # first characters; those of full width too, and `'` itself, to tell it from a guard


@dataclass(frozen=True)
class Answer:
    """The winner, its best report, and its figures on the test part (None where there is no test part or model)."""

    trial: TrialRecord
    report: Report
    test: dict[str, float] | None


def conclude(
    record: ExperimentRecord, found: Found, splits: Splits | None, cpus: float, gpus: float, *, ended: bool = True
) -> Answer | None:
    """Writes trials.csv and, where a trial has a finite metric, `best/`; the test part is read here, once.

    The winner follows `experiment.BEST_RULE`. A search that is extended and still has the same best epoch keeps
    the test figures it has.

    Args:
        ended: whether the search has. One that is to go on may have another winner then, and whoever stops it waits:
            the test part is not read.
    """
    folder, experiment = record.experiment.folder, record.experiment
    write_atomically(folder / "trials.csv", trials_csv(record))
    winner = whole_winner(record)
    if winner is None:
        return None
    trial, report = winner
    best = folder / "best"
    best.mkdir(exist_ok=True)
    config = config_of(experiment, trial, report.epoch, cpus=cpus, gpus=gpus, sha256=found.sha256)
    test = tested_before(best, config)
    if test is None and report.checkpoint and splits is not None:
        state = save_model(within(folder, report.checkpoint), best / "model.pt")
        test = evaluate(found, config, state, splits) if ended and splits.test is not None else None
    write_atomically(best / "config.json", json.dumps(config, indent=2) + "\n")
    metrics = {"epoch": report.epoch, "validation": report.metrics, "test": test}
    if splits is not None and splits.notice:
        metrics["notice"] = splits.notice
    write_atomically(best / "metrics.json", json.dumps(strict(metrics), indent=2) + "\n")
    return Answer(trial, report, test)


def config_of(
    experiment: Experiment, trial: TrialRecord, epoch: int, *, cpus: float, gpus: float, sha256: str
) -> dict[str, Any]:
    """All that training this setting again needs; `epoch` is the one whose model is meant."""
    return {
        "space": experiment.space,
        "config": trial.config,
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
    """What a best/config.json says of its trial; one that an older version wrote has fewer fields."""
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
    """The winner, passing over reports whose checkpoint is damaged."""
    while (winner := record.best()) is not None:
        trial, report = winner
        path = within(record.experiment.folder, report.checkpoint) if report.checkpoint else None
        why = damage(path) if path is not None and path.exists() else ""
        if not why:
            break
        logger.warning("%s is damaged (%s): the answer is the best of the others", path, why)
        left = replace(trial, reports=tuple(each for each in trial.reports if each is not report))
        record = replace(record, trials=tuple(left if each is trial else each for each in record.trials))
    return winner


def tested_before(best: Path, config: dict[str, Any]) -> dict[str, float] | None:
    """The test figures of an earlier conclusion with this same winner, so that the test part is read only once."""
    try:
        same = dict(json_in(best, "config.json"))
        test: dict[str, float] | None = json_in(best, "metrics.json")["test"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    named = ("trial", "epoch", "config", "space_sha256", "seed")
    return test if all(same.get(name) == config[name] for name in named) else None


def save_model(checkpoint: Path, model_path: Path) -> dict[str, Any]:
    """Writes the state_dict of a checkpoint's model; returns the whole training's state."""
    import torch

    state: dict[str, Any] = torch.load(checkpoint / STATE, weights_only=True, map_location="cpu")["training"]
    saved = io.BytesIO()
    torch.save(state["model"], saved)
    write_atomically(model_path, saved.getvalue())
    return state


def evaluate(found: Found, config: dict[str, Any], state: dict[str, Any], splits: Splits) -> dict[str, float]:
    """The figures of a training's state on the test part."""
    import torch

    from tuner.training.loop import Training

    assert found.space.task is not None and splits.test is not None  # splits come from a task
    # As many threads as the trial had: another number adds in another order, and the last digits would differ
    # from those that `tuner.train` prints.
    torch.set_num_threads(max(1, int(config["cpus"])))
    spec = replace(spec_of(config), strategy="single", num_workers=1, gpus=0)
    training = Training.of(found.space.task, splits, spec)
    with contextlib.closing(training):
        training.load_state_dict(state)
        return training.evaluate(splits.test)


def trials_csv(record: ExperimentRecord) -> str:
    """Returns one row a trial: parameters, last and best metrics, epochs, seconds, status, rung and reason if stopped.

    A spreadsheet takes a text for a formula by its first character, and runs it. Such a text, in the head too, begins
    with `'` here: whoever reads the file takes one `'` off the start of a text. Numbers stay as they are.
    """
    metric, mode = record.experiment.metric, record.experiment.mode
    params = list(dict.fromkeys(name for trial in record.trials for name in flat(trial.config)))
    names = list(dict.fromkeys(name for t in record.trials for r in t.reports for name in r.metrics))
    out = io.StringIO()
    # All texts in quotes: a bare carriage return, which some readers end a row at, is not quoted by itself.
    rows = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)

    def write(row: list[Any]) -> None:
        rows.writerow([f"'{each}" if isinstance(each, str) and each.startswith(FORMULAS) else each for each in row])

    head = ["trial", "status", "epochs", "seconds", "best_epoch", "rung", "reason", "error"]
    write([*head, *params, *(f"best_{name}" for name in names), *(f"last_{name}" for name in names)])
    for trial in record.trials:
        best = trial.best(metric, mode)
        last = trial.reports[-1] if trial.reports else None
        stopped = [d for d in trial.decisions if d.action == "stop"]
        config = flat(trial.config)
        write(
            [trial.id, trial.status, last.epoch if last else 0, trial.seconds, best.epoch if best else ""]
            + [stopped[-1].rung if stopped and stopped[-1].rung is not None else "", trial.reason]
            + [trial.errors[-1] if trial.errors else "", *(config.get(name, "") for name in params)]
            + [report.metrics.get(name, "") if report else "" for report in (best, last) for name in names]
        )
    return out.getvalue()
