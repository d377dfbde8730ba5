"""Reads the sources of --start-from, past experiments and files of settings; maps them to a space's parameters."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tuner.errors import RequestError
from tuner.record.records import TrialRecord, finite
from tuner.record.results import load
from tuner.record.saved_experiment import latest_experiment
from tuner.record.storage.files import bytes_in, json_in
from tuner.record.storage.object_store import ObjectStore
from tuner.record.texts import counted, flat
from tuner.spec import domains, parameters
from tuner.spec.constraints import Aim
from tuner.spec.experiment import LATEST, Experiment, is_uri, local_root
from tuner.spec.metrics import Goal
from tuner.spec.space import Space
from tuner.tuning.searchers.past import Cells, Standing, cells_of, columns_of

FIRST = 3  # settings of a past search that run first
MOST_KNOWN = 1000  # maximum number of settings that are kept of a source
LEARNING = ("forest", "hyperopt", "optuna", "bohb")  # searchers that learn from the trials of past searches
ALLOWED = "give an experiment's name or folder, a best/config.json, or a .csv file with one setting per row"
# Beginnings of the columns' names in the tables of Ray Tune (`config/lr`), W&B (`config.lr`) and Optuna (`params_lr`).
PREFIX = re.compile(r"^(config[/.]|params_)")


class Known(NamedTuple):
    """A known setting by flattened names; how it ranks, None if it has no value; how many epochs it trained."""

    setting: dict[str, Any]
    rank: Standing | None = None
    epochs: int = 1


def past_of(experiment: Experiment, space: Space) -> dict[str, Any]:
    """Returns what the search starts from, as JSON for its journal; empty without --start-from.

    Raises a RequestError if a source cannot be read, or if none of its settings fits the space.
    """
    sources, first = [], list[Cells]()
    for name in experiment.start_from:
        try:
            known = _read(name, experiment)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
            why = getattr(error, "strerror", None) or error
            raise RequestError(f"--start-from {name}: cannot be read ({why}); {ALLOWED}") from None
        fitting, refused = _mapped(known, space)
        lost = f"; {refused.total()} of {len(known)} left out, such as {next(iter(refused))}" if refused else ""
        if not fitting:
            raise RequestError(f"--start-from {name}: no setting of this space{lost}; {ALLOWED}")
        ranked = sorted((pair for pair in fitting if pair[1].rank), key=lambda pair: pair[1].rank or ())
        usable = [cells for cells, each in ranked or fitting if not each.rank or math.isfinite(each.rank.loss)]
        new = _unique(usable, first)[: FIRST if ranked else MOST_KNOWN]
        first += new
        told = [[*cells, each.epochs] for cells, each in _fewer(ranked)]
        note = f"{name}: {counted(len(new), 'setting')} first"
        if told and experiment.searcher in LEARNING:
            note += f"; {experiment.searcher} learns from {counted(len(told), 'trial')}"
        if others := sorted(
            {name for each in known for name in each.setting} - parameters.describe(space.declared).keys()
        ):
            note += f"; ignored, as they are no parameters: {', '.join(others[:5])}{', ...' * (len(others) > 5)}"
        sources.append({"from": name, "note": note + lost, "first": new, "told": told})
    return {"params": list(columns_of(space)), "sources": sources} if sources else {}


def _mapped(known: list[Known], space: Space) -> tuple[list[tuple[Cells, Known]], Counter[str]]:
    """Returns the settings that fit the space as cells, and how often which reason kept another one out."""
    columns, declared = columns_of(space), parameters.describe(space.declared)
    fitting, refused = list[tuple[Cells, Known]](), Counter[str]()
    for each in known:
        own = {name: value for name, value in each.setting.items() if name in declared and value not in ("", None)}
        try:
            cells = cells_of(columns, parameters.place(space.declared, domains.nested(own)))
        except (ValueError, RequestError) as error:
            refused[str(error)] += 1
            continue
        if any(cell is not None for cell in cells):
            fitting.append((cells, each))
    return fitting, refused


def _read(name: str, experiment: Experiment) -> list[Known]:
    """Reads a source; raises one of many exceptions if it cannot be read."""
    path = Path(name)
    if path.suffix == ".csv":
        return list(_rows(bytes_in(path.parent, path.name).decode("utf-8-sig"), experiment))
    if path.suffix == ".json":
        content = json_in(path.parent, path.name)
        return [Known(flat(content.get("config", content)))]
    return list(_trials(path if path.is_dir() else _folder(name, experiment), experiment))


def _folder(name: str, experiment: Experiment) -> Path:
    results = local_root(experiment.results)
    if is_uri(experiment.results):
        store = ObjectStore(experiment.results)
        name = store.names()[-1] if name == LATEST else name
        store.bring(name, results / name)
    return results / (latest_experiment(results) if name == LATEST else name)


def _trials(folder: Path, experiment: Experiment) -> Iterator[Known]:
    """Yields a past experiment's trials with its constants; ranked by this search's metric if they report it."""
    record = load(folder)
    wanted, compared, constants = experiment.wanted, record.experiment.compared, flat(record.constants)
    if not any(wanted.metric in report.metrics for trial in record.trials for report in trial.reports):
        wanted = record.experiment.wanted
    for trial in record.trials:
        if trial.reports or trial.status == "failed":
            rank = _standing(trial, wanted, compared)
            yield Known(constants | flat(trial.config), rank, max(1, trial.last_epoch))


def _standing(trial: TrialRecord, wanted: Goal, compared: Goal) -> Standing:
    """Returns how a trial of a past search ranks, as in the search itself."""
    last, best, other = trial.last(wanted.metric), trial.best(Aim((wanted,))), finite(trial.last(compared.metric))
    if trial.status != "failed" and best and finite(last) is not None:
        return Standing(0, 0, wanted.sign * best.metrics[wanted.metric])
    if trial.status != "failed" and last is None and other is not None:
        return Standing(1, -trial.last_epoch, compared.sign * other)
    return Standing(2, 0, math.inf)


def _rows(text: str, experiment: Experiment) -> Iterator[Known]:
    """Yields the rows of a table, ranked by the column of the metric if there is one: also of our own trials.csv."""
    metric, sign = experiment.wanted.metric, experiment.wanted.sign
    for row in csv.DictReader(text.splitlines()):
        # trials.csv puts a `'` before a text that a spreadsheet could run as a formula.
        cells = {
            PREFIX.sub("", k or ""): domains.literal(v.removeprefix("'")) for k, v in row.items() if isinstance(v, str)
        }
        values = [cells[column] for column in (f"best_{metric}", metric, "value") if column in cells]
        has_value = bool(values) and values[0] != ""
        number = finite(values[0]) if has_value else None
        rank = Standing(2, 0, math.inf) if number is None else Standing(0, 0, sign * number)
        epochs = next((cells[c] for c in ("epochs", "training_iteration") if type(cells.get(c)) is int), 1)
        yield Known(cells, rank if has_value else None, max(1, epochs))


def _unique(settings: list[Cells], but: list[Cells]) -> list[Cells]:
    """Returns the settings, without repetitions and without those in `but`, in their order."""
    return [list(cells) for cells in dict.fromkeys(map(tuple, settings)) if list(cells) not in but]


def _fewer(ranked: list[tuple[Cells, Known]]) -> list[tuple[Cells, Known]]:
    """Returns at most MOST_KNOWN of the ranked settings: half are the best, the others are spread over the rest."""
    half = MOST_KNOWN // 2
    if len(ranked) <= MOST_KNOWN:
        return ranked
    step = (len(ranked) - half) / half
    return ranked[:half] + [ranked[half + int(step * number)] for number in range(half)]
