"""Reads experiment folders that plain Ray Tune wrote, from Ray's own files; loads no pickle.

Ray stores each trial's setting (params.json), its reports (result.json) and all trials' statuses
(experiment_state-*.json). These files do not say which metric was optimised, or why a scheduler stopped a trial.
"""

from __future__ import annotations

import math
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.record.events import MOST_ID, MOST_TIME, is_trial_id
from tuner.record.reading import Hold, unbounded
from tuner.record.records import Report, TrialRecord, finite
from tuner.record.report_keys import RAY_KEYS
from tuner.record.storage.files import SWELL, bytes_in, is_file_in, parsed, weight
from tuner.spec.experiment import MOST_EPOCHS, Experiment

# Maximum number of entries of a Ray folder, about one per trial; listing it takes four file lookups for each.
MOST_ENTRIES = 20_000
# Maximum bytes of a snapshot, of one of a trial's files, and of all files together; one result has 1 kB.
MOST_SNAPSHOT, MOST_RESULTS, MOST_OF_ALL = 64 << 20, 64 << 20, 256 << 20
OF_A_TRIAL = ("params.json", "result.json", "error.txt")
STATUS = {"TERMINATED": "completed", "ERROR": "failed", "RUNNING": "interrupted", "PAUSED": "interrupted"}
RAY_COLUMNS = RAY_KEYS | {"warmup_time"}  # older versions of Ray also wrote warmup_time
UP = ("acc", "reward", "score", "auc", "f1", "precision", "recall", "r2")  # parts of the names of metrics to maximize
DOWN = ("loss", "error", "rmse", "mse", "mae", "perplexity")


def is_ray_folder(folder: Path) -> bool:
    """Whether the folder is an experiment that Ray Tune wrote; raises OSError if the folder cannot be read."""
    if is_file_in(folder, "tuner.pkl"):
        return True
    with os.scandir(folder) as entries:
        return any(_is_state_file(entry.name) for entry in islice(entries, MOST_ENTRIES))


def _is_state_file(name: str) -> bool:
    return name.startswith("experiment_state-") and name.endswith(".json")


def ray_files_in(folder: Path) -> list[Path]:
    """Lists the files that `read_ray` may read, but no links of trials; raises RequestError for too many entries."""
    paths = []
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= MOST_ENTRIES:
                raise RequestError(f"{folder} has more than {MOST_ENTRIES:,} entries, too many to be shown")
            if _is_state_file(entry.name):
                paths += [folder / entry.name]
            elif entry.is_dir(follow_symlinks=False):
                paths += [path for name in OF_A_TRIAL if stat.S_ISREG(_mode(path := folder / entry.name / name))]
    return sorted(paths)


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def read_ray(folder: Path, hold: Hold = unbounded) -> tuple[Experiment, dict[str, Any], tuple[TrialRecord, ...], str]:
    """Returns the experiment, its facts, trials and state; raises RequestError if files are too large or damaged.

    A damaged or huge snapshot (experiment_state-*.json) is ignored. Metric and mode are guesses by name (`guessed`).

    Args:
        hold: called before a file is parsed, with estimated bytes of memory: those of the snapshot's values, or those
            of all trials' values read so far.
    """
    files = ray_files_in(folder)
    if sum(path.lstat().st_size for path in files) > MOST_OF_ALL:
        raise RequestError(f"{folder} holds more than {MOST_OF_ALL:,} bytes of results, too many to be shown")
    states = _states(folder, (path for path in files if path.parent == folder), hold)
    values, heavier = defaultdict[Path, dict[str, Any]](dict), 0
    for path in files:
        if path.parent != folder:
            values[path.parent][path.name], heavier = _parsed(path, heavier, hold)
    trials = _ordered([_trial(place, files, states) for place, files in values.items()])
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
    facts = {
        "foreign": True,
        "created": min(starts, default=max(0.0, folder.stat().st_mtime)),
        "data": {"notice": notice},
    }
    over = all(trial.status in ("completed", "failed") for trial in trials)
    return experiment, facts, tuple(trials), "finished" if over else "interrupted"


def guessed(trials: Iterable[TrialRecord]) -> tuple[str, str]:
    """Guesses metric and mode from the metrics' names in the trials' last reports.

    It returns the most frequent name with a word of DOWN (min), else of UP (max), else the first name (min).
    """
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


def _states(folder: Path, paths: Iterable[Path], hold: Hold) -> dict[str, str]:
    """Returns trial id -> Ray's status from the newest snapshot; empty if that is damaged, too large or missing."""
    newest = max(paths, key=lambda path: path.lstat().st_mtime_ns, default=None)
    if newest is None:
        return {}
    try:
        content = bytes_in(folder, newest.name, MOST_SNAPSHOT)
        hold(weight(content))
        rows = parsed(content)["trial_data"] if weight(content) <= SWELL * MOST_SNAPSHOT else []
        trials = [parsed(row[0].encode()) if isinstance(row[0], str) else row[0] for row in rows]
        return {str(trial["trial_id"]): str(trial["status"]) for trial in trials}
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return {}  # the snapshot is damaged; the trials' own files still have their reports


def _trial(place: Path, files: dict[str, Any], states: dict[str, str]) -> TrialRecord:
    rows, error = files.get("result.json", []), files.get("error.txt", "")
    numbered = ((_epoch(row.get("training_iteration")), row) for row in rows)
    reports = {epoch: _report(epoch, row) for epoch, row in numbered if epoch is not None}
    first, last = (rows[0], rows[-1]) if rows else ({}, {})
    trial_id = last.get("trial_id") if is_trial_id(last.get("trial_id")) else place.name
    done = "completed" if last.get("done") else "interrupted"
    status = "failed" if "error.txt" in files else STATUS.get(states.get(str(trial_id), ""), done)
    start = max(0.0, _seconds(first.get("timestamp")) - _seconds(first.get("time_this_iter_s")))
    return TrialRecord(
        id=str(trial_id),
        config=files.get("params.json", {}),
        status=status,
        reason="" if status == "failed" else f"ended after {len(reports)} reports; why is not recorded",
        reports=tuple(reports.values()),
        errors=tuple(error.strip()[-2000:].splitlines()[-1:]),
        node=str(last.get("node_ip") or "")[:MOST_ID],
        seconds=round(_seconds(last.get("time_total_s")), 3),
        spans=((start, _seconds(last.get("timestamp")) or start),) if rows else (),
    )


def _report(epoch: int, row: dict[str, Any]) -> Report:
    metrics = {k: v for k, v in row.items() if k not in RAY_COLUMNS and not k.startswith("config/")}
    return Report(epoch, metrics, None, _seconds(row.get("timestamp")))


def _epoch(value: Any) -> int | None:
    """Converts a value to a number of epochs; None unless it is 0..MOST_EPOCHS."""
    number = finite(value)
    return int(number) if number is not None and 0 <= number <= MOST_EPOCHS else None


def _seconds(value: Any) -> float:
    number = finite(value)
    return float(number) if number is not None and 0 <= number <= MOST_TIME else 0.0


def _ordered(trials: list[TrialRecord]) -> list[TrialRecord]:
    """Sorts trials by start time and numbers all reports by time, those of the same second by trial and epoch."""
    trials = sorted(trials, key=lambda trial: trial.spans or ((math.inf, 0.0),))
    arrived = sorted((r.time, i, r.epoch) for i, trial in enumerate(trials) for r in trial.reports)
    order = {(i, epoch): number for number, (_, i, epoch) in enumerate(arrived, 1)}
    return [
        replace(trial, reports=tuple(r._replace(order=order[i, r.epoch]) for r in trial.reports))
        for i, trial in enumerate(trials)
    ]


def _parsed(path: Path, others: int, hold: Hold) -> tuple[Any, int]:
    """Reads and parses a trial's file; returns its value and the estimated memory of all values, with `others`.

    Raises:
        RequestError: the file is damaged, unreadable or too large.
    """
    try:
        content = bytes_in(path.parent.parent, f"{path.parent.name}/{path.name}", MOST_RESULTS)
        heavier = others + weight(content)
        if heavier > SWELL * MOST_OF_ALL:
            raise RequestError(f"{path.parent.parent} holds too many values to be shown")
        hold(heavier)
        if path.name == "error.txt":
            return content.decode(errors="replace"), heavier
        if path.name == "result.json":
            return _results(content), heavier
        config = parsed(content)
        return config if isinstance(config, dict) else {}, heavier
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} is damaged ({error})") from None


def _results(content: bytes) -> list[dict[str, Any]]:
    """Parses one result per line; ignores an incomplete last line."""
    rows = []
    lines = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            row = parsed(line) if line.strip() else {}
            if not isinstance(row, dict):
                raise ValueError("each line must be a JSON object, the result of one report")
            rows += [row] if row else []
        except ValueError as error:
            if number < len(lines):
                raise ValueError(f"line {number}: {error}") from None
    return rows
