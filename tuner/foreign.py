"""A folder of Ray Tune that this project did not make, read from Ray's own files. No pickle of it is opened.

Ray keeps each trial's setting (params.json) and reports (result.json, or progress.csv) and how trials stand
(experiment_state-*.json), but neither what was optimised nor why a scheduler stopped a trial.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.experiment import Experiment
from tuner.records import Report, TrialRecord

STATUS = {"TERMINATED": "completed", "ERROR": "failed", "RUNNING": "interrupted", "PAUSED": "interrupted"}
# What Ray adds to each result; a plain folder keeps it beside what the trial said.
RAY_COLUMNS = frozenset(
    "trial_id training_iteration time_total_s time_this_iter_s time_since_restore iterations_since_restore timestamp "
    "date pid hostname node_ip done config checkpoint_dir_name should_checkpoint experiment_tag timesteps_total "
    "episodes_total timesteps_since_restore warmup_time".split()
)
UP = ("acc", "reward", "score", "auc", "f1", "precision", "recall", "r2")  # in a name: more is better
DOWN = ("loss", "error", "rmse", "mse", "mae", "perplexity")


def is_ray_folder(folder: Path) -> bool:
    """Whether Ray Tune wrote it as an experiment's folder."""
    return (folder / "tuner.pkl").is_file() or any(folder.glob("experiment_state-*.json"))


def files_of(folder: Path) -> list[Path]:
    """The files that `read_ray` reads, links left out."""
    found = [*folder.glob("experiment_state-*.json")]
    for name in ("params.json", "result.json", "progress.csv", "error.txt"):
        found += folder.glob(f"*/{name}")
    return sorted(path for path in found if not path.is_symlink() and not path.parent.is_symlink())


def read_ray(folder: Path) -> tuple[Experiment, dict[str, Any], tuple[TrialRecord, ...], str]:
    """The experiment as far as it can be told, its facts, trials and state; RequestError where nothing can be read."""
    files = files_of(folder)
    states = _states(path for path in files if path.name.startswith("experiment_state-"))
    by_trial: dict[Path, set[str]] = {}
    for path in files:
        if path.parent != folder:
            by_trial.setdefault(path.parent, set()).add(path.name)
    trials = [_trial(place, names, states) for place, names in sorted(by_trial.items())]
    trials = _in_order(trials)
    metric, mode = guessed(trials)
    experiment = Experiment(
        space="",
        name=folder.name,
        results=str(folder.parent),
        scheduler="fifo",
        metric=metric,
        mode="max" if mode == "max" else "min",
        num_samples=max(1, len(trials)),
        max_epochs=max((r.epoch for t in trials for r in t.reports), default=1),
    )
    notice = (
        f"Not made by tuner: read from Ray Tune's own files. Decisions are not recorded; that {metric} is what was "
        f"optimised, and {mode} is best, is a guess by its name."
    )
    starts = [t.spans[0][0] for t in trials if t.spans]
    facts = {"foreign": True, "created": min(starts, default=folder.stat().st_mtime), "data": {"notice": notice}}
    over = all(trial.status in ("completed", "failed") for trial in trials)
    return experiment, facts, tuple(trials), "finished" if over else "interrupted"


def guessed(trials: Iterable[TrialRecord]) -> tuple[str, str]:
    """Metric and mode by the names of what most trials report."""
    names = Counter(
        name
        for trial in trials
        for name, value in (trial.reports[-1].metrics if trial.reports else {}).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    )
    for words, mode in ((DOWN, "min"), (UP, "max")):
        for name, _ in names.most_common():
            if any(word in name.lower() for word in words):
                return name, mode
    return next(iter(names), "metric"), "min"


def _states(paths: Iterable[Path]) -> dict[str, str]:
    """Trial id -> its status in Ray's words, of the newest snapshot."""
    newest = max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)
    try:
        rows = json.loads(newest.read_text())["trial_data"] if newest else []
        trials = [json.loads(row[0]) if isinstance(row[0], str) else row[0] for row in rows]
        return {trial["trial_id"]: trial["status"] for trial in trials}
    except (ValueError, KeyError, TypeError, IndexError):
        return {}  # a torn snapshot: the trials' own files still tell what they reported


def _trial(place: Path, names: set[str], states: dict[str, str]) -> TrialRecord:
    config = _json(place / "params.json") if "params.json" in names else {}
    rows = _results(place / "result.json") if "result.json" in names else []
    if not rows and "progress.csv" in names:
        rows = _progress(place / "progress.csv")
    reports = {int(row["training_iteration"]): _report(row) for row in rows if "training_iteration" in row}
    first, last = (rows[0], rows[-1]) if rows else ({}, {})
    trial_id = str(last.get("trial_id") or place.name)
    done = "completed" if last.get("done") else "interrupted"
    status = "failed" if "error.txt" in names else STATUS.get(states.get(trial_id, ""), done)
    error = (place / "error.txt").read_text(errors="replace").strip()[-2000:] if "error.txt" in names else ""
    start = float(first.get("timestamp") or 0) - float(first.get("time_this_iter_s") or 0)
    seconds = float(last.get("time_total_s") or 0)
    return TrialRecord(
        id=trial_id,
        config=config if isinstance(config, dict) else {},
        status=status,
        reason="" if status == "failed" else f"ended after {len(reports)} reports; why is not recorded",
        reports=tuple(reports.values()),
        errors=(error.splitlines()[-1],) if error else (),
        node=str(last.get("node_ip") or ""),
        seconds=round(seconds, 3),
        spans=((start, float(last.get("timestamp") or start)),) if rows else (),
    )


def _report(row: dict[str, Any]) -> Report:
    metrics = {k: v for k, v in row.items() if k not in RAY_COLUMNS and not k.startswith("config/")}
    return Report(int(row["training_iteration"]), metrics, None, float(row.get("timestamp") or 0))


def _in_order(trials: list[TrialRecord]) -> list[TrialRecord]:
    """The trials by their start, their reports numbered as they arrived, to the second that Ray keeps."""
    trials = sorted(trials, key=lambda trial: trial.spans or ((math.inf, 0.0),))
    arrived = sorted((r.time, i, r.epoch) for i, trial in enumerate(trials) for r in trial.reports)
    order = {(i, epoch): number for number, (_, i, epoch) in enumerate(arrived, 1)}
    return [
        replace(trial, reports=tuple(r._replace(order=order[i, r.epoch]) for r in trial.reports))
        for i, trial in enumerate(trials)
    ]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise RequestError(f"{path} is damaged ({error})") from None


def _results(path: Path) -> list[dict[str, Any]]:
    """One result a line; a torn last line is left out."""
    rows = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            if number < len(lines):
                raise RequestError(f"{path} is damaged at line {number} ({error})") from None
    return rows


def _progress(path: Path) -> list[dict[str, Any]]:
    with open(path, newline="") as file:
        return [{name: _number(text) for name, text in row.items() if name} for row in csv.DictReader(file)]


def _number(text: str | None) -> Any:
    try:
        return float(text) if text else None
    except ValueError:
        return {"True": True, "False": False}.get(text or "", text)
