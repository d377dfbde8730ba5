"""Writes the answer of a search: trials.csv, and the best trial with its test metrics in `best/`."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import os
import shlex
import shutil
import stat
from collections.abc import Container, Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tuner.core.events import ENDED, Report
from tuner.engine.workers.own_folder import scratch_folder
from tuner.errors import blamed
from tuner.errors.output import bounded_output
from tuner.record.checkpoints import STATE, SavedCheckpoints, damage, load_state, within
from tuner.record.columns import table_columns
from tuner.record.format import FIELD, FORMAT
from tuner.record.lines import strict, with_words
from tuner.record.records import TrialRecord
from tuner.record.results import ExperimentRecord
from tuner.record.storage.checksums import CheckedCopies, changed
from tuner.record.storage.files import MOST_BYTES, link_or_copy, replacing_folder, tidy, write_atomically
from tuner.record.storage.made import RECORD, MadeFolder
from tuner.record.storage.trial_files import FILES, Written, copy_files, thin
from tuner.record.texts import METRIC, PARAMETER, column_names, command, flat
from tuner.record.trial_row import TrialRow, trial_row
from tuner.spec.spaces import LoadedSpace, is_in_main, with_place
from tuner.training.task import TrialSpec, trial_seed
from tuner.tuning.answer.best import (
    CHECKPOINT,
    CHECKSUMS,
    CONFIG,
    FRONT,
    METRICS,
    MODEL,
    OPTIONS,
    README,
    WRITTEN,
    BestTrial,
    best_trial,
    checksums_in,
    held_in,
    is_loadable,
    metrics_in,
    point_in,
    readme,
    written_in,
)

if TYPE_CHECKING:
    from tuner.engine.processes.client import Shared
    from tuner.training.data import Splits
    from tuner.training.task import Task

logger = logging.getLogger(__name__)
# A spreadsheet runs a text as a formula if it starts with one of these characters, so trials.csv puts a `'` before such
# a text, also in the header. `'` itself is among the characters, so a program can always remove one leading `'`.
FORMULAS = tuple("=+-@\t\r\n'＝＋－＠")
# Columns of trials.csv -> the fields of a ConfirmedSetting, in the row of its `trial`.
JUDGED = {f"confirmed_{name}": name for name in ("mean", "low", "high", "best_probability", "luck")}
HEAD = tuple(each.name for each in table_columns(TrialRow, "csv"))
CONFIRMS = ("confirms", "confirms_seed", *JUDGED)  # columns of a search with --confirm
OURS = (*HEAD, *CONFIRMS)  # no parameter's or metric's column has one of these names
# If these fields of best/config.json are unchanged, the test metrics in `best/` are those of the best trial.
SAME = ("trial", "epoch", "config", "space_sha256", "seed")


def conclude(
    record: ExperimentRecord,
    loaded_space: LoadedSpace,
    splits: Splits | None,
    cpus: float,
    gpus: float,
    shared: Shared | None = None,
) -> BestTrial | None:
    """Writes trials.csv and, if a trial has a finite metric, `best/`; returns the best trial by `experiment.BEST_RULE`.

    Once the search has finished, computes the test metrics of a task's best trial, unless `best/` has them (SAME).
    For a function, deletes links and large files of the other ended trials (`thin`).
    """
    folder, ended = record.experiment.folder, record.state == "finished"
    write_atomically(folder / "trials.csv", trials_csv(record))
    best = folder / "best"
    tidy(best)  # it may have the last copy of the best model
    winner = whole_winner(record, plain=splits is not None)
    if winner is None:
        return None
    trial, report = winner[:2]
    front = [each for each in record.front() if each[0].id != trial.id] if record.experiment.aim.several else []
    others = [(*each, _whole(folder, each[1], plain=splits is not None)) for each in front]
    with replacing_folder(best, _rescue) as new:
        for point, each in enumerate([winner, *others]):
            place = point_in(new, point)
            place.mkdir(parents=True, exist_ok=True)
            _write(record, loaded_space, splits, shared, (cpus, gpus), *each, place, point)
        _link(best, new, _sorted_out(best)[1])
    if ended or splits is not None:
        for point, (its, at, _) in enumerate([winner, *others]):
            _notice_without(record, its, at, point_in(best, point), is_function=splits is None)
    if splits is None:
        kept = {trial.id, *(other.id for other, *_ in others)}
        for trial_record in record.trials:
            if trial_record.status in ENDED and trial_record.id not in kept:
                thin(folder / "ray" / trial_record.id)
    return best_trial(record, trial, report)


def _notice_without(
    record: ExperimentRecord, trial: TrialRecord, report: Report, place: Path, *, is_function: bool
) -> None:
    """Warns if a trial of the answer has no model or checkpoint in its folder `place`, or if its files are gone."""
    folder, files = record.experiment.folder, record.experiment.folder / "ray" / trial.id / FILES
    name, whose = place.relative_to(folder), "the best trial" if place.name == "best" else "trial"
    if is_loadable(place):
        return
    if report.checkpoint:
        what = f"{folder / report.checkpoint}, the checkpoint of {whose} {trial.id}, is gone or damaged"
        logger.warning("NOTE: %s: %s/ has its setting and metrics, but no model%s", what, name, _again(record, trial))
    elif is_function and Written.read(files.parent).files and not (files.exists() or (place / FILES).exists()):
        logger.warning("NOTE: %s, the files of %s %s, are gone: %s/ has none of them", files, whose, trial.id, name)


def _write(
    record: ExperimentRecord, loaded_space: LoadedSpace, splits: Splits | None, shared: Shared | None,
    resources: tuple[float, float], trial: TrialRecord, report: Report, checkpoint: Path | None, new: Path, point: int,
) -> None:  # fmt: skip
    """Writes a trial of the answer to the folder `new`; tests it if the search has finished and it was not tested."""
    folder, ended = record.experiment.folder, record.state == "finished"
    config = config_of(record, trial, report.epoch, cpus=resources[0], gpus=resources[1], sha256=loaded_space.sha256)
    config["checkpoint"] = report.checkpoint
    if is_in_main(loaded_space.name) and loaded_space.path:  # `load_best` needs the script
        config["space_file"] = str(loaded_space.path)
    with contextlib.suppress(TypeError, ValueError):  # if JSON cannot hold the constants, `load_best` reads the data
        if splits is not None:
            config["data_constants"] = json.loads(json.dumps(dict(splits.constants), allow_nan=False))
    best = folder / "best"
    held, _ = held_in(best, trial, report)
    same = metrics_in(held, report, **{name: config[name] for name in SAME}) if held else None
    test, doubt = (same["test"], same.get("doubt", "")) if same else (None, "")
    if splits is None:
        config[CHECKSUMS] = _copy_files(record, trial, checkpoint, held, new)
    else:
        state = _stage_model(checkpoint, new)
        if state and test is None and ended and splits.test is not None and len(splits.test) > 0:
            material = loaded_space.space.task, splits
            test, doubt = _tested(shared, material, config, state, report.metrics.get("loss"))
        if _has_model(held):
            _keep(held, MODEL, new)
        elif state and held and (held / MODEL).exists():
            logger.warning("NOTE: %s was damaged; it is written again from the trial's checkpoint", best / MODEL)
        if sums := _copy_files(record, trial, None, held, new):
            config[CHECKSUMS] = sums
    metrics = {"epoch": report.epoch, "validation": report.metrics, "test": test}
    metrics |= {"notice": splits.notice} if splits is not None and splits.notice else {}
    metrics |= {"doubt": doubt} if doubt else {}
    if broken := trial.broken(record.experiment.aim, report):
        metrics["broken"] = broken
    if settings := record.confirmation.settings:
        metrics["confirmed"] = {"done": record.confirmation.done, "settings": [asdict(each) for each in settings]}
    (new / README).write_text(readme(folder, loaded_space.name, new, point), "utf-8")
    config[WRITTEN] = _written(new, config.get(CHECKSUMS) or {})
    (new / CONFIG).write_text(json.dumps(config | with_words(config["config"]), indent=2) + "\n")
    (new / METRICS).write_text(json.dumps(strict(metrics), indent=2) + "\n")


def _copy_files(
    record: ExperimentRecord, trial: TrialRecord, checkpoint: Path | None, held: Path | None, new: Path
) -> dict[str, str]:
    """Copies a function's checkpoint and files to the folder `new`, and returns their checksums.

    Keeps the copies in the present `best/` unless one of them has changed. Once the search has ended, copies the
    checkpoint if none is kept, unless it has another content than the copy had, and the files that the trial has.
    """
    copies, ended = CheckedCopies(new), record.state == "finished"
    written = checksums_in(held) if held else {}
    for name in (CHECKPOINT, FILES):
        of_name = {path: was for path, was in written.items() if path.startswith(f"{name}/")}
        if ended and name == FILES:
            copy_files(record.experiment.folder / "ray" / trial.id, new / FILES, copies.add)
        if held and not (new / name).exists():  # for FILES: the trial's folder is gone
            if why := changed(held, of_name):
                logger.warning("NOTE: %s: it is not kept", why)
            else:
                _keep(held, name, new)
                copies.update(of_name)
        if ended and name == CHECKPOINT and checkpoint and not (new / name).exists():
            shutil.copytree(checkpoint, new / name, symlinks=True, copy_function=copies.add)
            if any(copies.get(path) != was for path, was in of_name.items()):
                MadeFolder(new, name, "ours").remove()
    has_room = len(json.dumps(copies)) < MOST_BYTES // 2  # more than 100,000 files would make config.json unreadable
    return {path: sums for path, sums in copies.items() if has_room and (new / path).exists()}


def config_of(
    record: ExperimentRecord, trial: TrialRecord, epoch: int, *, cpus: float, gpus: float, sha256: str
) -> dict[str, Any]:
    """Returns the content of best/config.json, to train this setting again; `best/` has the model after `epoch`."""
    experiment, config = record.experiment, record.config_of(trial)
    head = {FIELD: FORMAT, "config": config, "trial": trial.id, "epoch": epoch}
    head |= {"metric": experiment.metric, "mode": experiment.mode, "space_sha256": sha256}
    head |= {"data_sums": (record.facts.get("data") or {}).get("sums", {})}
    options = {name: getattr(experiment, field) for name, field in OPTIONS.items()}
    if (shorter := record.shorter(trial))[0]:
        options["shorter"] = list(shorter)
    return head | options | {"cpus": cpus, "gpus": gpus}


def spec_of(config: dict[str, Any]) -> TrialSpec:
    same = ("config", "max_epochs", "precision", "on_oom", "strategy", "cpus", "gpus")
    seed = trial_seed(config["seed"], config["trial"])
    return TrialSpec(**{name: config[name] for name in same}, seed=seed, num_workers=config["workers"])


def whole_winner(record: ExperimentRecord, *, plain: bool) -> tuple[TrialRecord, Report, Path | None] | None:
    """Returns the best trial, its best report and that report's checkpoint; None if no trial has a finite metric.

    If that checkpoint is gone or damaged and `best/` has no whole copy of it, returns the best report with an
    undamaged checkpoint, else the best report of all. The returned checkpoint is None if it is missing or damaged. With
    `plain`, for a Task, a checkpoint that has more than tensors and plain values is damaged, and the whole copy is a
    model that `load_best` can load. For a function, any folder best/checkpoint counts; `_copy_files` checks its files.
    """
    folder = record.experiment.folder
    first, saved = record.best_journaled, SavedCheckpoints(folder)
    if first is None:
        return None
    winner = record.contenders.best_saved(saved)
    if winner and first[1].checkpoint not in saved:
        what = f"{folder / str(first[1].checkpoint)}, the checkpoint of the best trial {first[0].id}, is gone"
        logger.warning("NOTE: %s: the answer is the best of the other checkpoints%s", what, _again(record, first[0]))
    while winner is not None:
        trial, report = winner
        path = within(folder, str(report.checkpoint))
        if not (why := _unusable(path, plain=plain)):
            return trial, report, path
        if _has_model(held_in(folder / "best", trial, report)[0]) if plain else report.checkpoint in saved.in_best:
            return trial, report, None
        logger.warning("NOTE: %s is %s: the answer is the best of the other checkpoints", path, why)
        left = replace(trial, reports=tuple(each for each in trial.reports if each is not report))
        record = replace(record, trials=tuple(left if each is trial else each for each in record.trials))
        winner = record.contenders.best_saved(saved)
    return *first, None


def _whole(folder: Path, report: Report, *, plain: bool) -> Path | None:
    """Returns the path of a report's checkpoint; None if it has none, or a damaged one."""
    path = within(folder, report.checkpoint) if report.checkpoint else None
    return path if path and not _unusable(path, plain=plain) else None


def _unusable(checkpoint: Path, *, plain: bool) -> str:
    """Says whether a checkpoint is gone or how it is damaged; empty if it is whole."""
    if not checkpoint.is_dir():
        return "gone"
    why = damage(checkpoint, plain=plain)
    return f"damaged ({why})" if why else ""


def _has_model(held: Path | None) -> bool:
    """Whether a folder with the answer, or None, has a model that `load_best` can load."""
    return held is not None and (held / MODEL).is_file() and not damage(held, MODEL, plain=True)


def _again(record: ExperimentRecord, trial: TrialRecord) -> str:
    """Returns the end of a sentence: the command that trains a trial's setting again; empty if no command can."""
    if not record.retrainable:
        return ""
    place = shlex.quote(str(record.experiment.folder))
    return f"; {command('train', place, '--trial', trial.id, '--save', MODEL)} trains it again and saves its model"


def _keep(best: Path | None, name: str, new: Path) -> None:
    """Links or copies tuner's file or folder from the present `best/` to the new one, unless the new one has it."""
    if best is not None and not (new / name).exists():
        _link(best, new, [path for path in _sorted_out(best)[0] if path == name or path.startswith(f"{name}/")])


def _written(new: Path, checked: Container[str]) -> list[str]:
    """Lists what has been written to the new `best/`, but for files with checksums; too many files as `folder/`."""
    paths = [path for path in {*_leaves(new), CONFIG, METRICS} - {RECORD} if path not in checked]
    has_room = len(json.dumps(paths)) < MOST_BYTES // 4
    return sorted(paths if has_room else {path.partition("/")[0] + "/" * ("/" in path) for path in paths})


def _leaves(folder: Path, below: str = "") -> Iterator[str]:
    """Yields the paths of the files, links and empty folders in a folder, relative to it."""
    with os.scandir(folder / below) as entries:
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False) and any(os.scandir(entry))
            yield from _leaves(folder, f"{below}{entry.name}/") if is_folder else [below + entry.name]


def _sorted_out(best: Path) -> tuple[list[str], list[str]]:
    """Returns the paths of `_leaves` that tuner has written to `best/`, and the user's."""
    ours: list[str] = []
    theirs: list[str] = []
    named = written_in(best)
    for point in (best / FRONT).glob("*"):
        named |= {f"{FRONT}/{point.name}/{path}" for path in written_in(point)}
    whole = tuple(path for path in named if path.endswith("/"))
    for path in _leaves(best) if best.is_dir() else ():
        (ours if path in named or path == RECORD or path.startswith(whole) else theirs).append(path)
    return ours, theirs


def _link(best: Path, new: Path, paths: list[str]) -> None:
    """Links or copies paths of `_leaves` from the present `best/` to the new one, under other names if taken there."""
    for path in paths:
        source, target = best / path, new / path
        while os.path.lexists(target):
            target = target.with_name(f"{target.name}.old")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir() and not source.is_symlink():
            target.mkdir()
        else:
            link_or_copy(source, target)


def _rescue(old: Path, best: Path) -> None:
    """Keeps the user's files that were saved or changed in the old `best/` while the new one was written."""
    kept = (path for path in _sorted_out(old)[1])
    late = [path for path in kept if not (os.path.lexists(best / path) and _is_one(old / path, best / path))]
    _link(old, best, late)


def _is_one(old: Path, new: Path) -> bool:
    """Whether a file was linked or copied, or is a folder in both places."""
    before, after = old.lstat(), new.lstat()
    is_folder = stat.S_ISDIR(before.st_mode) and stat.S_ISDIR(after.st_mode)
    return is_folder or os.path.samestat(before, after) or before.st_mtime_ns <= after.st_mtime_ns


def _stage_model(checkpoint: Path | None, new: Path) -> dict[str, Any] | None:
    """Writes a checkpoint's model into the new `best/`; returns the training's state, None without a checkpoint."""
    if not (checkpoint and (checkpoint / STATE).is_file()):
        return None
    with blamed(str(checkpoint / STATE)):
        state: dict[str, Any] = load_state(checkpoint, STATE, "remove the checkpoint, and resume again")["training"]
        if "model" not in state:
            raise ValueError("its training has no model")
    write_model(state, new / MODEL)
    return state


def write_model(state: dict[str, Any], path: Path) -> None:
    """Writes the model of a training's state to a file; OSError if it cannot."""
    import torch

    saved = io.BytesIO()  # to a file, torch.save would raise RuntimeError when the disk is full
    torch.save(state["model"], saved)
    path.write_bytes(saved.getbuffer())


def evaluate(
    config: dict[str, Any], state: dict[str, Any], task: Task, splits: Splits, recorded: Any = None
) -> tuple[dict[str, float], str]:
    """Returns the metrics of a training's state on the test part, computed on the CPU.

    Also says how the model's validation loss differs from the `recorded` one, if it does: then the model lacks state.
    """
    import torch

    from tuner.training import doubts
    from tuner.training.loop import Training

    assert splits.test is not None
    # One process evaluates, with as many threads as the trial has CPUs, as in `tuner.train`. Another number of threads
    # would sum in another order and change the last digits.
    spec = replace(spec_of(config), strategy="single", num_workers=1, gpus=0)
    torch.set_num_threads(spec.num_threads)
    with bounded_output(), scratch_folder(config["space"]):
        with contextlib.closing(Training(task, splits, spec)) as training:
            training.load_weights(state)  # the optimizer is not needed, and may not be loadable
            changed, loss = state["attributes"], training.validation_loss
            return training.evaluate(splits.test), doubts.of_model(recorded, changed, training.model, loss)


def _tested(
    shared: Shared | None, material: Any, config: dict[str, Any], state: dict[str, Any], recorded: Any
) -> tuple[dict[str, float] | None, str]:
    """Returns what `evaluate` does, and warns; the metrics are None if the space's code fails: the answer is kept."""
    from tuner.engine.processes.client import EndedError, apart

    evaluated = partial(_evaluated, config=config, state=state, recorded=recorded)
    try:
        test, why = apart(shared, evaluated) if shared else evaluated({}, material)
    except (EndedError, OSError) as error:
        test, why = None, str(error)
    if test is None:
        kept = "its model and validation metrics are saved; correct the space, and --resume computes the rest"
        logger.warning("NOTE: trial %s has no test metrics: %s; %s", config["trial"], why, kept)
        return None, ""
    if why:
        logger.warning("NOTE: trial %s: %s", config["trial"], why)
    return test, why


def _evaluated(
    _: Any, material: tuple[Task, Splits], *, config: dict[str, Any], state: dict[str, Any], recorded: Any
) -> tuple[dict[str, float] | None, str]:
    """Returns what `evaluate` does, or None and the error of the space's code."""
    try:
        return evaluate(config, state, *material, recorded)
    except (Exception, SystemExit) as error:
        return None, with_place(error)


def trials_csv(record: ExperimentRecord) -> str:
    """Returns the content of trials.csv, in which no text is a formula (FORMULAS)."""
    out = io.StringIO()
    # Quotes every text: Python's csv before 3.11.9 and 3.12.3 leaves a carriage return bare, which may end a row.
    rows = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    for row in trials_table(record):
        rows.writerow([f"'{each}" if isinstance(each, str) and each.startswith(FORMULAS) else each for each in row])
    return out.getvalue()


class Columns(NamedTuple):
    """The columns of trials.csv that belong to parameters and metrics: name -> column, in the order of the columns."""

    params: dict[str, str]
    best: dict[str, str]
    last: dict[str, str]


def columns_in(record: ExperimentRecord) -> Columns:
    """Names the columns of parameters and metrics; no two are alike, and none has the name of one of OURS."""
    params = dict.fromkeys(name for trial in record.trials for name in flat(trial.config))
    names = list(dict.fromkeys(name for t in record.trials for r in t.reports for name in r.metrics))
    metrics = [[f"{which}_{name}" for name in names] for which in ("best", "last")]
    of_metrics = column_names(chain(*metrics), OURS, METRIC)
    best, last = ({name: of_metrics[it] for name, it in zip(names, each, strict=True)} for each in metrics)
    return Columns(column_names(params, {*OURS, *of_metrics.values()}, PARAMETER), best, last)


def trials_table(record: ExperimentRecord) -> Iterator[list[Any]]:
    """Yields the column names of trials.csv, then one row per trial; None where a trial has no value."""
    columns = columns_in(record)
    confirmed = {each.trial: each for each in record.confirmation.settings}
    more = CONFIRMS if any(trial.confirms for trial in record.trials) else ()
    yield [*HEAD, *columns.params.values(), *columns.best.values(), *columns.last.values(), *more]
    for trial in record.trials:
        best, last = trial.best(record.experiment.aim), trial.reports[-1] if trial.reports else None
        row = trial_row(record, trial)
        yield [
            *(getattr(row, name) for name in HEAD),
            *map(flat(trial.config).get, columns.params),
            *(report.metrics.get(name) if report else None for report in (best, last) for name in columns.best),
            *([trial.confirms or None, trial.seed if trial.confirms else None] if more else []),
            *(getattr(confirmed.get(trial.id), JUDGED[name], None) for name in more[2:]),
        ]
