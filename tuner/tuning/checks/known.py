"""Reads the sources of --start-from, past experiments and files of settings; maps them to a space's parameters."""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tuner.errors import RequestError
from tuner.record.format import JOURNAL
from tuner.record.lines import json_of
from tuner.record.records import TrialRecord, finite
from tuner.record.results import ExperimentRecord, load, load_named
from tuner.record.saved_experiment import FILE, UNREADABLE, latest_experiment
from tuner.record.storage.files import MOST_BYTES, bytes_in, json_in
from tuner.record.storage.made import temporary_folder
from tuner.record.storage.object_store import ObjectStore
from tuner.record.texts import METRIC, counted, flat
from tuner.spec import domains, parameters
from tuner.spec.constraints import Aim
from tuner.spec.experiment import LATEST, Experiment, is_uri
from tuner.spec.methods import SEARCHERS
from tuner.spec.metrics import Goal, keeps_last
from tuner.spec.option_values import MOST_EPOCHS
from tuner.spec.space import Space
from tuner.tuning.searchers.named import num_settings
from tuner.tuning.searchers.past import Cells, Standing, cells_of, columns_of

NUM_RUN_FIRST = 3  # settings of a past search that run first
MOST_KNOWN = 1000  # maximum number of settings that are kept of a source
MAX_SHOWN_CHARS, MAX_SHOWN_NAMES = 100, 5  # characters of a reason, and names, in a note or an error text
ALLOWED = "give an experiment's name or folder, a best/config.json, or a .csv file with one setting per row"
# Beginnings of the columns' names in the tables of Ray Tune (`config/lr`), W&B (`config.lr`) and Optuna (`params_lr`).
PREFIX = re.compile(r"^(config[/.]|params_)")
# Columns that say how a trial ended, and what they say of one that failed (in tables of ours, Ray, W&B and Optuna).
STATUS, FAILED = ("status", "state"), ("failed", "fail", "error", "crashed")
WORST = Standing(2, 0, math.inf)
Described = dict[str, dict[str, Any]]  # parameter -> its domain, as `parameters.describe` returns it


class Known(NamedTuple):
    """A known setting by flattened names; how it ranks, None if it has no value; how many epochs it trained."""

    setting: dict[str, Any]
    rank: Standing | None = None
    epochs: int = 1


def past_of(experiment: Experiment, space: Space) -> dict[str, Any]:
    """Returns what the search starts from, as JSON for its journal; empty without --start-from.

    Raises a RequestError if a source cannot be read, or if none of its settings fits the space.
    """
    if not experiment.start_from:
        return {}
    sources, first = list[dict[str, Any]](), dict[tuple[Any, ...], None]()
    described = parameters.describe(space.declared)
    declared = {name: each for name, each in described.items() if each["kind"] != "sample_from"}
    columns, fixed = columns_of(space), flat(space.constants)
    for source in experiment.start_from:
        try:
            label, known = _read(source, experiment, declared)
        except (*UNREADABLE, csv.Error) as error:
            why = getattr(error, "strerror", None) or error
            raise RequestError(f"--start-from {source}: cannot be read ({why}); {ALLOWED}") from None
        fitting, lost = _mapped(known, space, columns, declared)
        ranked = sorted((pair for pair in fitting if pair[1].rank), key=lambda pair: pair[1].rank or WORST)
        good = [pair for pair in ranked if pair[1].rank and math.isfinite(pair[1].rank.loss)]
        unranked = [pair for pair in fitting if not pair[1].rank]
        lost += ["one without the metric"] * (len(unranked) if good else 0)
        left_out = f"; {len(lost)} of {len(known)} left out, such as {lost[0][:MAX_SHOWN_CHARS]}" if lost else ""
        if not fitting:
            what = f"no setting of this space, whose parameters are {_listed(declared)}" if known else "has no setting"
            raise RequestError(f"--start-from {source}: {what}{left_out}; {ALLOWED}")
        usable = dict.fromkeys(tuple(cells) for cells, _ in good or unranked)
        new = [cells for cells in usable if cells not in first][: NUM_RUN_FIRST if good else MOST_KNOWN]
        first |= dict.fromkeys(new)
        learns = SEARCHERS[experiment.searcher].learns_past
        told = [[*cells, each.epochs] for cells, each in _fewer(ranked)] if learns else []
        note = f"{label}: {counted(len(new), 'setting')} first"
        if ranked:
            note += f"; {experiment.searcher} learns from {counted(len(told), 'trial') if told else 'no trial'}"
        if lacking := _lacking(columns, [cells for cells, _ in fitting]):
            note += f"; drawn at random, as it lacks them: {_listed(lacking)}"
        items = (item for each in known for item in each.setting.items())
        if ignored := sorted({item[0] for item in items if item[0] not in described and item not in fixed.items()}):
            note += f"; ignored, as they are no parameters: {_listed(ignored)}"
        sources.append({"from": source, "note": note + left_out, "first": list(map(list, new)), "told": told})
    if len(first) > (most := max(experiment.most_samples, num_settings(experiment, space))):
        sources[-1]["note"] += f"; of all these settings, --num-samples {experiment.num_samples} runs the first {most}"
    past = {"params": list(columns), "sources": sources}
    if len(json_of(past)) > MOST_BYTES // 2:
        what = f"{counted(len(sources), 'source')} with more than {MOST_BYTES // 2:,} bytes of settings"
        raise RequestError(f"--start-from: {what}, which the journal cannot keep; give fewer or smaller ones")
    return past


def _listed(names: Iterable[str]) -> str:
    shown = [name[:MAX_SHOWN_CHARS] for name in itertools.islice(names, MAX_SHOWN_NAMES + 1)]
    return ", ".join([*shown[:MAX_SHOWN_NAMES], *["..."] * (len(shown) > MAX_SHOWN_NAMES)])


def _lacking(columns: Iterable[str], settings: list[Cells]) -> list[str]:
    """Returns the parameters that no setting has, without those of the branches of conditional ones."""
    lacking = (name for number, name in enumerate(columns) if all(cells[number] is None for cells in settings))
    return [name.removesuffix(f"/{parameters.CHOSEN}") for name in lacking if f"/{parameters.BRANCH}" not in name]


def _mapped(
    known: list[Known], space: Space, columns: Mapping[str, Any], declared: Described
) -> tuple[list[tuple[Cells, Known]], list[str]]:
    """Returns the settings that fit the space as cells, and for each other one why it does not fit."""
    fitting, refused = list[tuple[Cells, Known]](), list[str]()
    for each in known:
        own = {name: value for name, value in each.setting.items() if name in declared}
        own = {n: v for n, v in own.items() if v is not None or None in declared[n].get("values", ())}
        try:
            cells = cells_of(columns, parameters.place(space.declared, domains.nested(own)))
        except (ValueError, RequestError) as error:
            refused.append(str(error))
            continue
        if own:
            fitting.append((cells, each))
    return fitting, refused


def _read(source: str, experiment: Experiment, declared: Described) -> tuple[str, list[Known]]:
    """Reads a source; returns its name and its settings; raises one of many exceptions if it cannot be read."""
    folder, name = os.path.split(os.path.realpath(source))
    if source.lower().endswith(".csv"):
        return source, list(_rows(bytes_in(Path(folder), name).decode("utf-8-sig"), experiment, declared))
    if source.lower().endswith(".json"):
        content = json_in(Path(folder), name)
        config = content.get("config", content) if isinstance(content, dict) else content
        if not isinstance(config, dict):
            raise ValueError("it holds no JSON object of parameters")
        return source, [Known(_flat(config, declared))]
    record = _record(source, experiment.results)
    label = f"{source} ({record.experiment.name})" if source == LATEST else source
    return label, list(_trials(record, experiment, declared))


def _flat(config: dict[str, Any], declared: Described) -> dict[str, Any]:
    """Flattens a config, but not the dictionaries that are values of a choice."""
    found = flat(config)
    for name in (name for name, each in declared.items() if any(str(v)[:1] == "{" for v in each.get("values", ()))):
        if inner := {each: found.pop(each) for each in list(found) if each.startswith(f"{name}/")}:
            found[name] = domains.nested({each.removeprefix(f"{name}/"): value for each, value in inner.items()})
    return found


def _record(source: str, results: str) -> ExperimentRecord:
    """Reads a past experiment; of one in an object store, gets only what is read."""
    if is_uri(results) and "/" not in source:
        store = ObjectStore(results)
        names = store.names()
        name = names[-1] if source == LATEST and names else source
        if name not in names:
            raise RequestError(f"no experiment {name!r} in {results}")
        with temporary_folder("tuner-") as made:
            folder = made.path / name
            folder.mkdir()
            for file in (FILE, JOURNAL):
                (folder / file).write_bytes(store.read(name, file))
            return load(folder)
    return load_named(latest_experiment(Path(results)) if source == LATEST else source, results)


def _trials(record: ExperimentRecord, experiment: Experiment, declared: Described) -> Iterator[Known]:
    """Yields a past experiment's trials with its constants; ranked by this search's metric if they report it."""
    wanted, compared, constants = experiment.wanted, record.experiment.compared, flat(record.constants)
    if not any(wanted.metric in report.metrics for trial in record.trials for report in trial.reports):
        wanted = record.experiment.wanted
    limits = experiment.aim.constraints
    for trial in record.trials:
        if trial.reports or trial.status == "failed":
            breaks = experiment.aim.violation({each.metric: trial.last(each.metric) for each in limits}) > 0
            rank = WORST if breaks else _standing(trial, wanted, compared)
            yield Known(constants | _flat(trial.config, declared), rank, max(1, trial.last_epoch))


def _standing(trial: TrialRecord, wanted: Goal, compared: Goal) -> Standing:
    """Returns how a trial of a past search ranks, as in the search itself."""

    def is_blank(metrics: Mapping[str, Any]) -> bool:  # as `SeededSearcher` ignores reports
        return keeps_last(compared, wanted, metrics) and finite(wanted.value(metrics)) is None

    trial = replace(trial, reports=tuple(report for report in trial.reports if not is_blank(report.metrics)))
    last, best, other = trial.last(wanted.metric), trial.best(Aim((wanted,))), finite(trial.last(compared.metric))
    if trial.status != "failed" and best and finite(last) is not None:
        return Standing(0, 0, wanted.sign * best.metrics[wanted.metric])
    if trial.status != "failed" and last is None and other is not None:
        return Standing(1, -trial.last_epoch, compared.sign * other)
    return WORST


def _rows(text: str, experiment: Experiment, declared: Described) -> Iterator[Known]:
    """Yields the rows of a table, ranked by the column of the metric if there is one: also of our own trials.csv."""
    metric, aim = experiment.wanted.metric, experiment.aim
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    # trials.csv puts a `'` before a text that a spreadsheet could run as a formula.
    head = [each.strip().removeprefix("'") for each in next(rows, [])]
    names = [each if each in declared else PREFIX.sub("", each) for each in head]
    # Beside `config/epochs`, the column `epochs` is not the parameter, but how long the trial trained.
    prefixed = {name for name, each in zip(names, head, strict=True) if name != each}
    params = {i: n for i, n in enumerate(names) if n in declared and (n != head[i] or n not in prefixed)}
    for row in rows:
        cells = {i: text for i, each in enumerate(row[: len(head)]) if (text := each.strip().removeprefix("'"))}
        others = {head[i]: text for i, text in cells.items() if i not in params}
        value = _cell(others, f"{METRIC}best_{metric}", f"best_{metric}", metric, "value")
        last = _cell(others, f"{METRIC}last_{metric}", f"last_{metric}")
        failed = any(others[name].lower() in FAILED for name in others if name.lower() in STATUS)
        failed |= last is not None and finite(last) is None  # the training diverged
        breaks = aim.violation({n: _cell(others, f"last_{n}", n) for n, *_ in aim.constraints}) > 0
        number = None if breaks or failed else finite(value)
        rank = WORST if number is None else Standing(0, 0, experiment.wanted.sign * number)
        epochs = finite(_cell(others, "epochs", "training_iteration")) or 1
        setting = {params[i]: _spelled(declared[params[i]], text) for i, text in cells.items() if i in params}
        yield Known(setting, rank if failed or value is not None else None, int(min(MOST_EPOCHS, max(1, epochs))))


def _cell(cells: dict[str, str], *names: str) -> Any:
    """Returns the first of these cells that a row has, as a number or a text; None if it has none."""
    return next((domains.literal(cells[name]) for name in names if name in cells), None)


def _spelled(described: dict[str, Any], cell: str) -> Any:
    """Returns the value of a choice that a cell spells; of another parameter, its number or text."""
    spelled = (value for value in described.get("values", ()) if str(value) == cell)
    return next(spelled, domains.literal(cell))


def _fewer(ranked: list[tuple[Cells, Known]]) -> list[tuple[Cells, Known]]:
    """Returns at most MOST_KNOWN of the ranked settings: half are the best, the others are spread over the rest."""
    half = MOST_KNOWN // 2
    if len(ranked) <= MOST_KNOWN:
        return ranked
    step = (len(ranked) - half) / half
    return ranked[:half] + [ranked[half + int(step * number)] for number in range(half)]
