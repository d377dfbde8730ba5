"""Makes a table of learning curves from an experiment of this project.

python -m benchmarks.search_quality.record EXPERIMENT OUT.npz
"""

from __future__ import annotations

import argparse
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.search_quality import tables
from benchmarks.search_quality.simulate import Curves
from tuner.errors import RequestError
from tuner.record.reading import Reading
from tuner.record.records import TrialRecord, finite
from tuner.record.saved_experiment import load_experiment
from tuner.spec import domains

SEARCH = "search with --searcher random --scheduler fifo for a table of all settings"
RANGES = ("uniform", "loguniform", "randint", "lograndint")


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
    trials = list(Reading(folder / "journal.jsonl").read_on())
    for trial in trials:
        values = _values(trial, experiment.metric, experiment.max_epochs)
        if values is None:
            continue
        settings.append(dict(domains.leaves(trial.config)))
        metric.append(values)
        seconds.append(_seconds(trial, experiment.max_epochs))
    if not settings:
        raise RequestError(f"{folder}: none of {len(trials)} trials completed or diverged; {SEARCH}")
    curves = tables.write(out, experiment.metric, experiment.mode, space, settings, metric, seconds)
    return curves, len(trials) - len(settings)


def _range(name: str, described: dict[str, Any]) -> dict[str, Any]:
    kind = described.get("kind")
    if kind in ("choice", "grid_search"):
        return {"type": "choice", "values": described["values"]}
    if kind not in RANGES:
        raise RequestError(f"parameter {name!r} is a {kind}; a table has only choice, {', '.join(RANGES)}")
    low, high = described["lower"], described["upper"]
    exclusive = "randint" in kind and "q" not in described
    return {"type": kind, "low": low, "high": high - 1 if exclusive else high}


def _values(trial: TrialRecord, metric: str, max_epochs: int) -> list[float] | None:
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


def _seconds(trial: TrialRecord, max_epochs: int) -> list[float]:
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search_quality.record", description=__doc__)
    parser.add_argument("experiment", type=Path, help="folder of the experiment")
    parser.add_argument("out", type=Path, help="table to write, an .npz file")
    given = parser.parse_args()
    try:
        curves, left_out = record(given.experiment, given.out)
    except RequestError as error:
        sys.exit(str(error))
    print(
        f"{given.out}: {len(curves.values)} settings x {curves.max_epochs} epochs, {given.out.stat().st_size:,} bytes"
    )
    if left_out:
        print(f"left out: {left_out} trials that neither completed nor diverged; {SEARCH}")


if __name__ == "__main__":
    main()
