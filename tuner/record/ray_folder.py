"""Reads folders that plain Ray Tune wrote. Only their pickles, which are not read, say which metric was optimised."""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from tuner.core.events import (
    Event,
    ExperimentFinished,
    Report,
    TrialEnded,
    TrialEvent,
    TrialFailed,
    TrialStarted,
    TrialSuggested,
)
from tuner.errors import RequestError
from tuner.record.lines import MOST_ID, MOST_TIME, is_trial_id
from tuner.record.reading import Hold
from tuner.record.records import Folding, TrialRecord
from tuner.record.report_keys import EPOCH, RAY_KEYS
from tuner.record.storage.files import SWELL, bytes_in, is_file_in, parsed, weight
from tuner.spec.experiment import Experiment
from tuner.spec.metrics import finite, is_number, usual_mode
from tuner.spec.option_values import MOST_EPOCHS

MAX_RAY_ENTRIES = 20_000  # in a Ray folder: about one per trial, and each takes four file look-ups
MOST_FILE, MOST_OF_ALL = 64 << 20, 256 << 20  # maximum bytes of one file, and of all files together; a report has 1 kB
OF_A_TRIAL = ("params.json", "result.json", "error.txt")
STATUS = {"TERMINATED": "completed", "ERROR": "failed", "RUNNING": "interrupted", "PAUSED": "interrupted"}
RAY_COLUMNS = RAY_KEYS | {"warmup_time"}  # older versions of Ray also wrote warmup_time


def is_ray_folder(folder: Path) -> bool:
    """Whether the folder is an experiment that Ray Tune wrote; raises OSError if the folder cannot be read."""
    if is_file_in(folder, "tuner.pkl"):
        return True
    with os.scandir(folder) as entries:
        return any(_is_state_file(entry.name) for entry in islice(entries, MAX_RAY_ENTRIES))


def _is_state_file(name: str) -> bool:
    return name.startswith("experiment_state-") and name.endswith(".json")


def ray_files_in(folder: Path) -> list[Path]:
    """Lists files for `read_ray`, but no links among or in trials' folders; RequestError for too many entries."""
    paths = []
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= MAX_RAY_ENTRIES:
                raise RequestError(f"{folder} has more than {MAX_RAY_ENTRIES:,} entries, too many to be shown")
            if _is_state_file(entry.name):
                paths += [folder / entry.name]
            elif entry.is_dir(follow_symlinks=False):
                inside = (folder / entry.name / name for name in OF_A_TRIAL)
                paths += [path for path in inside if os.path.isfile(path) and not os.path.islink(path)]
    return sorted(paths)


def read_ray(folder: Path, hold: Hold = lambda weight: None) -> tuple[Experiment, dict[str, Any], Folding]:
    """Returns the experiment, its facts, and its trials; `guessed` supplies the experiment's metric and mode.

    Before it parses a file, it calls `hold` with the estimated bytes of memory of all files up to this one. A file that
    is too large or damaged raises a RequestError, except experiment_state-*.json, which is then ignored.
    """
    files = ray_files_in(folder)
    if sum(path.lstat().st_size for path in files) > MOST_OF_ALL:
        raise RequestError(f"{folder} holds more than {MOST_OF_ALL:,} bytes of results, too many to be shown")
    held = 0

    def content(path: Path) -> bytes:
        nonlocal held
        text = bytes_in(folder, str(path.relative_to(folder)), MOST_FILE)
        held += weight(text)
        if held > SWELL * MOST_OF_ALL:
            raise RequestError(f"{folder} holds too many values to be shown")
        hold(held)
        return text

    states = _states([path for path in files if path.parent == folder], content)
    values = defaultdict[Path, dict[str, Any]](dict)
    for path in files:
        if path.parent != folder:
            values[path.parent][path.name] = _parsed(path, content)
    histories = [_events(place, files, states) for place, files in values.items()]
    events: list[Event] = sorted((event for history in histories for event in history), key=attrgetter("time"))
    known = [event.time for event in events if event.time < math.inf]
    last = known[-1] if known else max(0.0, folder.stat().st_mtime)
    ends = [event for event in events if isinstance(event, TrialEnded)]
    over = all(end.status in ("completed", "failed") for end in ends)
    events.append(ExperimentFinished("finished" if over else "interrupted", time=last))
    folding = Folding(event._replace(time=min(event.time, last), order=n) for n, event in enumerate(events, 1))
    trials = folding.records()
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
    guess = f"The name {metric} suggests that it was optimised and that {mode} is best."
    notice = f"Not made by tuner: read from Ray Tune's own files, which record no decisions. {guess}"
    return experiment, {"foreign": True, "created": folding.sessions[0].begun, "data": {"notice": notice}}, folding


def guessed(trials: Iterable[TrialRecord]) -> tuple[str, str]:
    """Guesses metric and mode by `usual_mode`: the most frequent metric to minimize, else to maximize, else any."""
    last = (trial.reports[-1].metrics for trial in trials if trial.reports)
    names = Counter(name for metrics in last for name, value in metrics.items() if is_number(value))
    for mode in ("min", "max"):
        for name, _ in names.most_common():
            # `usual_mode` leaves a score open, because some are minimized; most are not.
            if usual_mode(name) == mode or (mode == "max" and "score" in name.lower()):
                return name, mode
    return next(iter(names), "metric"), "min"


def _states(paths: list[Path], content: Callable[[Path], bytes]) -> dict[str, str]:
    """Returns trial id -> Ray's status from the newest snapshot; empty if the file is damaged, too large or missing."""
    try:
        newest = max(paths, key=lambda path: path.lstat().st_mtime_ns)
        rows = parsed(content(newest))["trial_data"]
        trials = [parsed(row[0].encode()) if isinstance(row[0], str) else row[0] for row in rows]
        return {str(trial["trial_id"]): str(trial["status"]) for trial in trials}
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return {}  # the trials' own files still have their reports


def _events(place: Path, files: dict[str, Any], states: dict[str, str]) -> list[TrialEvent]:
    """Returns a trial's events as in a journal, `trial_ended` last; without results, their time is infinite."""
    rows, error = files.get("result.json", []), files.get("error.txt", "")
    last = rows[-1] if rows else {}
    trial_id = last.get("trial_id") if is_trial_id(last.get("trial_id")) else place.name
    done = "completed" if last.get("done") else "interrupted"
    status = "failed" if "error.txt" in files else STATUS.get(states.get(str(trial_id), ""), done)
    time = 0.0 if rows else math.inf
    node, config = str(last.get("node_ip") or "")[:MOST_ID], files.get("params.json", {})
    events: list[TrialEvent] = [] if rows else [TrialSuggested(config, time=time)]
    for row in rows:
        reported, took = (_within(row.get(name), MOST_TIME) or 0.0 for name in ("timestamp", "time_this_iter_s"))
        if not events or row.get("iterations_since_restore") == 1:
            time = max(time, reported - took)
            events.append(TrialStarted(config, {}, node, time=time))
        time = max(time, reported)
        if (epoch := _within(row.get(EPOCH), MOST_EPOCHS)) is not None:
            metrics = {k: v for k, v in row.items() if k not in RAY_COLUMNS and not k.startswith("config/")}
            events.append(Report(int(epoch), metrics, time=time))
    for line in error.strip()[-2000:].splitlines()[-1:]:
        events.append(TrialFailed(line, time=time))
    reason = "" if status == "failed" else f"ended after {len(rows)} reports; why is not recorded"
    events.append(TrialEnded(status, reason, time=time))
    return [event._replace(trial=str(trial_id)) for event in events]


def _within(value: Any, most: float) -> float | None:
    """Returns the value if it is a number from 0 to `most`, else None."""
    number = finite(value)
    return number if number is not None and 0 <= number <= most else None


def _parsed(path: Path, content: Callable[[Path], bytes]) -> Any:
    """Returns the value of a trial's file; raises RequestError if it is damaged, unreadable or too large."""
    try:
        text = content(path)
        if path.name == "error.txt":
            return text.decode(errors="replace")
        if path.name == "result.json":
            return _results(text)
        config = parsed(text)
        return config if isinstance(config, dict) else {}
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
