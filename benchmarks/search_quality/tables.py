"""Reads and writes tables of learning curves, and makes one from an experiment of this project.

python -m benchmarks.search_quality.tables EXPERIMENT OUT.npz
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search_quality.simulate import DOMAINS, Curves
from tuner.errors import RequestError
from tuner.record.reading import Reading
from tuner.record.records import TrialRecord, finite
from tuner.record.saved_experiment import load_experiment
from tuner.spec.domains import leaves

SEARCH = "search with --searcher random --scheduler fifo for a table of all settings"


def write(
    path: Path, name: str, mode: str, space: dict[str, Any], settings: list[Any], metric: Any, seconds: Any
) -> Curves:
    """Writes a table and returns it as the benchmark reads it.

    Args:
        settings: a dictionary per setting; a choice's value is its value, not its index.
        metric, seconds: shape (settings, epochs).

    Raises:
        RequestError: there is no setting, a value is not one of its choice's, or the result is not a valid table.
    """
    if not settings:
        raise RequestError(f"{path}: no curve to write")
    try:
        rows = [[_number(described, setting[each]) for each, described in space.items()] for setting in settings]
    except (KeyError, ValueError) as error:
        raise RequestError(f"{path}: a setting does not fit the space: {error}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:  # given a path, numpy appends .npz to any other ending
        np.savez_compressed(
            file,
            space=json.dumps(space),
            settings=np.array(rows, dtype=np.float32),
            metric=np.array(metric, dtype=np.float32),
            seconds=np.array(seconds, dtype=np.float32),
            name=name,
            mode=mode,
        )
    return Curves.load(path)


def _number(described: dict[str, Any], value: Any) -> float:
    return described["values"].index(value) if described["type"] == "choice" else float(value)


def tables_of(named: list[Path]) -> dict[str, Path]:
    """Finds the tables of files and folders; returns their files by their names, which are the files' without .npz.

    Raises:
        RequestError: a path does not exist, a folder has no table, or two tables have the same name.
    """
    paths: dict[str, Path] = {}
    for path in named:
        inside = sorted(path.glob("*.npz")) if path.is_dir() else [path] if path.is_file() else []
        if not inside:
            what = "no .npz file there" if path.exists() else "no such file or folder"
            raise RequestError(f"--tables {path}: {what}; name a table or a folder of tables")
        for each in inside:
            if each.stem in paths:
                raise RequestError(f"--tables: several tables are named {each.stem}; rename all but one of them")
            paths[each.stem] = each
    return paths


def record(folder: Path, out: Path) -> tuple[Curves, int]:
    """Writes the curves of an experiment's trials as a table; leaves out trials that neither completed nor diverged.

    Returns:
        The table, and how many trials were left out.

    Raises:
        RequestError: there is no such experiment, its space has a parameter that a table cannot have, or no trial is
            left.
    """
    experiment, facts = load_experiment(folder)
    described = facts.get("space", {}).get("params") or {}
    space = {name: _range(name, each) for name, each in described.items()}
    settings, metric, seconds = [], [], []
    trials = Reading(folder / "journal.jsonl").read_on().records()
    for trial in trials:
        values = values_of(trial, experiment.wanted.metric, experiment.max_epochs)
        if values is not None:
            settings.append(dict(leaves(trial.config)))
            metric.append(values)
            seconds.append(seconds_of(trial, experiment.max_epochs))
    if not settings:
        raise RequestError(f"{folder}: none of {len(trials)} trials completed or diverged; {SEARCH}")
    curves = write(out, experiment.wanted.metric, experiment.wanted.mode, space, settings, metric, seconds)
    return curves, len(trials) - len(settings)


def _range(name: str, described: dict[str, Any]) -> dict[str, Any]:
    kind = described.get("kind")
    if kind in ("choice", "grid_search"):
        return {"type": "choice", "values": described["values"]}
    if kind not in DOMAINS:
        raise RequestError(f"parameter {name!r} is a {kind}; a table has only choice, {', '.join(DOMAINS)}")
    low, high = described["lower"], described["upper"]
    exclusive = "randint" in kind and "q" not in described
    return {"type": kind, "low": low, "high": high - 1 if exclusive else high}


def values_of(trial: TrialRecord, metric: str, max_epochs: int) -> list[float] | None:
    """The metric after each epoch, NaN from the epoch on at which it diverged; None if the curve is unfinished."""
    reported = {report.epoch: finite(report.metrics.get(metric)) for report in trial.reports}
    values = []
    for epoch in range(1, max_epochs + 1):
        if epoch not in reported:
            return None
        if reported[epoch] is None:
            return values + [math.nan] * (max_epochs - epoch + 1)
        values.append(reported[epoch])
    return values


def seconds_of(trial: TrialRecord, max_epochs: int) -> list[float]:
    """The time of each epoch, its wait for a worker excluded; epochs after a divergence take the mean of those before.

    The first epoch of a trial and of each restart includes the start on its worker.
    """
    times = [report.time for report in sorted(trial.reports, key=lambda report: report.epoch)]
    starts = [start for start, _ in trial.spans]
    seconds = []
    for before, at in pairwise([-math.inf, *times]):
        since = max([before, *(start for start in starts if start <= at)])
        seconds.append(max(0.0, at - since) if math.isfinite(since) else 0.0)
    mean = sum(seconds) / len(seconds)
    return seconds + [mean] * (max_epochs - len(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search_quality.tables", description=__doc__)
    parser.add_argument("experiment", type=Path, help="folder of the experiment")
    parser.add_argument("out", type=Path, help="table to write, an .npz file")
    options = parser.parse_args()
    try:
        curves, left_out = record(options.experiment, options.out)
    except RequestError as error:
        sys.exit(str(error))
    print(f"{options.out}: {len(curves.values)} settings x {curves.max_epochs} epochs")
    if left_out:
        print(f"left out: {left_out} trials that neither completed nor diverged; {SEARCH}")


if __name__ == "__main__":
    main()
