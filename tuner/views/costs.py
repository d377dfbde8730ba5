"""Sums what the trials of a search cost by the values of each parameter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.record.columns import column
from tuner.record.records import TrialRecord, finite
from tuner.record.results import ExperimentRecord
from tuner.record.texts import flat, formatted

MAX_DISTINCT_VALUES = 8  # with more values, numbers are put into quarters of the trials, and texts get no rows
QUARTERS = 4


@dataclass(frozen=True)
class CostRow:
    """What the trials with one value of a parameter, or with the numbers of one range, cost on workers.

    With pbt, which changes values while trials train, a trial counts for its last value.
    `epoch_s` is None if no epoch was trained, and leaves out trials without epochs.
    """

    parameter: str = column("", "", "")
    value: str = column("", "a value, or the range of a quarter of the trials", "")
    trials: int = column()
    epochs: int = column()
    seconds: float = column("duration", "on workers; in seconds for a filter and a file", "duration")
    epoch_s: float | None = column("seconds an epoch")
    cpu_hours: float = column("CPU-hours")
    gpu_hours: float = column("GPU-hours")
    saved: int = column("epochs saved", "by pruning, an estimate")
    share: float = column("share of the time, %")


def cost_rows(record: ExperimentRecord) -> list[CostRow]:
    """Returns one row for each value, or quarter of the numbers, of each parameter that differs between trials."""
    configs = {trial.id: flat(trial.config) for trial in record.trials}
    saved, all_s = record.epochs_saved(), sum(trial.seconds for trial in record.trials) or 1.0
    rows = []
    for name in dict.fromkeys(name for config in configs.values() for name in config):
        with_it = [trial for trial in record.trials if name in configs[trial.id]]
        for label, trials in grouped(with_it, [configs[trial.id][name] for trial in with_it]):
            seconds, epochs = sum(trial.seconds for trial in trials), sum(map(record.epochs_of, trials))
            trained_s = sum(trial.seconds for trial in trials if trial.last_epoch)
            cpu, gpu = sum(trial.cpu_hours for trial in trials), sum(trial.gpu_hours for trial in trials)
            left = sum(saved.get(trial.id, 0) for trial in trials)
            each, share = trained_s / epochs if epochs else None, round(100 * seconds / all_s, 1)
            rows.append(CostRow(name, label, len(trials), epochs, seconds, each, cpu, gpu, left, share))
    return rows


def grouped(trials: Sequence[TrialRecord], values: Sequence[Any]) -> list[tuple[str, list[TrialRecord]]]:
    """Groups trials by value, or many numbers by quarters of the trials; empty for one value and for many texts."""
    texts = [formatted(value) for value in values]
    distinct = len(set(texts))
    numbers = [finite(value) for value in values]
    if 1 < distinct <= MAX_DISTINCT_VALUES:
        keys = dict(zip(texts, numbers, strict=True))
        order = sorted(keys, key=lambda text: (math.inf if keys[text] is None else keys[text], text))
        return [(key, [t for t, text in zip(trials, texts, strict=True) if text == key]) for key in order]
    if distinct == 1 or None in numbers:
        return []
    ranked = sorted(zip(numbers, texts, range(len(trials)), strict=True))
    ends = [len(ranked) * part // QUARTERS for part in range(QUARTERS + 1)]
    parts = [ranked[start:end] for start, end in zip(ends, ends[1:], strict=False)]
    return [(f"{part[0][1]} to {part[-1][1]}", [trials[index] for *_, index in part]) for part in parts]
