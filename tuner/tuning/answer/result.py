"""The result of a search: written and printed at its end, returned by `tuner.search`, read again by `tuner.load`."""

from __future__ import annotations

import importlib
import logging
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from tuner.engine.controller.failures import LESS_MEMORY, NO_MEMORY, likeness
from tuner.engine.workers.own_folder import save_stale
from tuner.errors import RequestError, blamed
from tuner.errors.one_line import in_one_line, told
from tuner.errors.users_code import with_cells
from tuner.record.confirm import ConfirmedSetting
from tuner.record.records import TrialRecord
from tuner.record.report_keys import GROWTH
from tuner.record.results import ExperimentRecord
from tuner.record.results import load as load_record
from tuner.record.storage.trial_files import FILES, Written
from tuner.record.texts import command, counted, figures, setting
from tuner.spec.command import QUOTED, is_command
from tuner.spec.resources import Resources
from tuner.spec.spaces import is_in_main, is_path
from tuner.training.devices.usage import NEEDED
from tuner.tuning.answer.best import BestTrial, best_trial, checksums_in, is_loadable
from tuner.tuning.answer.writing import columns_in, conclude, trials_table
from tuner.tuning.call import Request
from tuner.tuning.output.console import banner, listed, notes_on_metric, place
from tuner.tuning.resume.loading import gone
from tuner.views.certainty import certainty, confirmed_lines
from tuner.views.commands import resume_command, retrain_command, start_again, twice
from tuner.views.figures.plot import escaped
from tuner.views.prediction import PredictionRow, prediction
from tuner.views.report import write_report
from tuner.views.tables import front_rows
from tuner.views.verdict import diverged, ending_lines

MAX_NOTEBOOK_TRIALS = 10  # maximum number of trials in a notebook's view of a search
MOST_WAYS = 5  # maximum number of kinds of failure that a search lists at its end; similar failures are one kind
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchResult:
    """A search as recorded in its folder at the time of reading. `state`: running, finished, interrupted or failed."""

    folder: Path
    state: str
    _record: ExperimentRecord = field(repr=False)

    @property
    def exit_code(self) -> int:
        """0 finished; 130 interrupted; 1 running or failed, or all trials failed, or no trial has a finite metric."""
        if self.state == "interrupted":
            return 130
        succeeded = any(trial.status != "failed" for trial in self._record.trials)
        return 0 if self._record.best() and succeeded and self.state == "finished" else 1

    @cached_property
    def best(self) -> BestTrial | None:
        """The best trial so far; None if no trial has a finite metric.

        Raises a RequestError with the first failure instead if all trials failed and `state` is finished or failed.
        """
        winner, trials = self._record.best(), self._record.trials
        if winner:
            return best_trial(self._record, *winner)
        if self.state in ("finished", "failed") and trials and all(trial.status == "failed" for trial in trials):
            first = min(trials, key=lambda trial: trial.changed_at)
            told = "the only trial" if len(trials) == 1 else f"all {len(trials)} trials"
            trace = f"the full traceback is in {self.folder}/ray/{first.id}/error.txt"
            with in_one_line():
                why = with_cells(first.reason)
                raise RequestError(f"no best trial: {told} failed, {first.id} first: {why}; {trace}")
        return None

    @cached_property
    def front(self) -> list[BestTrial]:
        """The Pareto front of the trials that keep the constraints, the knee first; with one metric only the best.

        Point 1, 2, ... of this list is in `best/front/01`, `best/front/02`, ...; `load_best(folder, point=1)` loads it.
        """
        return [best_trial(self._record, *answer) for answer in self._record.front()]

    @cached_property
    def trials(self) -> Any:
        """A pandas DataFrame with one row per trial and the columns of trials.csv."""
        columns, *rows = trials_table(self._record)
        pandas: Any = importlib.import_module("pandas")
        return pandas.DataFrame(rows, columns=columns)

    @property
    def confirmed(self) -> tuple[ConfirmedSetting, ...]:
        """The settings that `confirm` trained again with other seeds, the best mean first; empty without `confirm`."""
        return self._record.confirmation.settings

    @property
    def errors(self) -> list[str]:
        """The last error of each failed trial that has one, in the order of the trials; empty if there is none."""
        return [trial.errors[-1] for trial in self._record.trials if trial.status == "failed" and trial.errors]

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Name -> Plotly figure with data, of those that `tuner.views.figures.catalogue` names."""
        from tuner.views.figures.catalogue import all_figures

        plotly: Any = importlib.import_module("plotly.graph_objects")
        return {name: plotly.Figure(figure) for name, figure in all_figures(self._record).items()}

    @property
    def prediction(self) -> list[PredictionRow]:
        """How well the metric of `prune_by` predicts the searched one, at each rung; empty without `prune_by`."""
        return prediction(self._record)

    def refreshed(self) -> SearchResult:
        """Reads the search's folder again."""
        return load(self.folder)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        e, table, columns = self._record.experiment, self.trials, columns_in(self._record)
        if best := columns.best.get(e.wanted.metric):
            table = table.sort_values(best, ascending=e.wanted.mode == "min").dropna(subset=best)
            table = table[["trial", "status", "epochs", best, *columns.params.values()]]
        lines = "<br>".join(escaped(line, 1000) for line in self._lines())
        return f"<p>{lines}</p>{table.head(MAX_NOTEBOOK_TRIALS).to_html(index=False)}"

    def _lines(self) -> list[str]:
        e = self._record.experiment
        totals = (f"{count} {status}" for status, count in self._record.stats.counts.items() if count)
        lines = [f"best        none: no trial has a finite {e.aim.named}"]
        if self._record.best() and (best := self.best):
            lines = [f"best        trial {best.trial}, epoch {best.epoch}: {setting(best.config)}"]
            lines += [f"validation  {figures(best.metrics, e.wanted.metric)}"]
            lines += [f"test        {figures(best.test)}"] if best.test else []
            lines += [*front_lines(self._record, best), *confirmed_lines(self._record)]
            sure = "" if self._record.confirmation.winner else certainty(self._record)
            lines += [f"how sure    {sure}"] if sure else []
        return [f"{e.name}: {self.state}; {', '.join(totals) or 'no trial'}", *lines, f"folder      {self.folder}"]


def load(folder: str | PathLike[str]) -> SearchResult:
    """Reads a search's folder, even during the search; RequestError if the folder has no search or a damaged one."""
    place = Path(folder)
    with blamed(str(place)):
        record = load_record(place)
    return SearchResult(place, record.state, record)


def save_answer(request: Request, resources: Resources) -> tuple[ExperimentRecord, BestTrial | None]:
    """Writes trials.csv, `best/` and report.html; if that fails, raises RequestError, or warns after an interrupt."""
    experiment, folder = request.experiment, request.experiment.folder
    record = replace(load_record(folder), experiment=experiment)
    save_stale()  # what trials wrote whose workers were killed
    try:
        best = best_trial(record, *winner) if (winner := record.best()) else None
        with told("trials.csv or best/ is not complete"):
            best = conclude(
                record, request.loaded_space, request.splits, resources.cpus, resources.gpus, request.shared
            )
        try:
            with told("report.html is not written"):
                write_report(record)
        except RequestError as error:  # the file there is the user's
            logger.warning("%s", error)
        return record, best
    except OSError as error:
        lost = gone(folder)
        again = lost or f"the search itself is saved: when this is corrected, --resume {experiment.name} writes them"
        if lost or record.state != "interrupted":
            raise RequestError(f"{folder}: the result files cannot be written ({error}); {again}") from None
        logger.warning("%s: the result files cannot be written (%s); %s", folder, error, again)
        return record, None


def ending(request: Request, record: ExperimentRecord, best: BestTrial | None) -> list[str]:
    """Returns what a search prints at its end: the answer, or why there is none, and the next commands."""
    e, state, splits = record.experiment, record.state, request.splits
    lines = ["", *failures(record.trials, e.folder), *out_of_memory(record.trials), *growing(record.trials)]
    if state == "failed":  # the reason would only repeat the error in the lines above
        if record.stats.failed:
            lines += ["the search was stopped, as these trials failed alike and none succeeded"]
            again = "correct the cause: --resume then tries these trials again"
            lines += [again + "; for another command, start a new search" * is_command(e.space)]
        else:
            lines += [f"the search was stopped: {record.reason}"]
    elif record.reason:
        lines += [f"NOTE: {'out of time: ' * (record.out_of_time and e.num_samples > 0)}{record.reason}"]
    if best:
        trial = next(trial for trial in record.trials if trial.id == best.trial)
        config = trial.config  # without constants
        if record.out_of_time and trial.status in ("paused", "interrupted"):
            whole = f"{record.epochs_of(trial)} of {counted(record.rules.max_epochs, 'epoch')}"
            lines += [f"NOTE: the best trial has trained {whole}; a resume with a larger budget may continue it"]
        if trial.status == "failed":
            lines += [f"NOTE: the best trial failed after epoch {record.epochs_of(trial)}; see the line `failed` above"]
        again = f" (the setting of trial {trial.confirms})" if trial.confirms else ""
        lines += [f"best        trial {best.trial}{again}, epoch {best.epoch}: {setting(config)}"]
        lines += [
            f"{'validation' if splits else 'reported  '}  {figures(best.metrics, e.wanted.metric)}",
            *notes_on_metric(e),
        ]
        if best.test:
            lines += [f"test        {figures(best.test)}"]
        elif splits is None:
            lines += ["test        none: the space is a function, so tuner knows no test set"]
        elif state != "finished":
            lines += ["test        not yet: the test set is used once, after the search has ended"]
        else:
            why = "computing it has failed" if is_loadable(e.folder / "best") else "best/ has no model"
            lines += [f"test        none: {why if splits.test else 'the data has no test part'}"]
        lines += [*shown("the front", front_lines, record, best), *shown("--confirm", confirmed_lines, record)]
        if splits and splits.notice:
            lines += [banner(splits.notice)]
    elif state == "interrupted":
        lines += ["no answer yet"]
    else:
        lines += [f"no answer: no trial has a finite {e.aim.named}; see {e.folder}/trials.csv"]
    lines += [
        *shown("the verdict", ending_lines, record),
        f"folder      {place(e)}",
        *(files_line(record, best) if best else []),
    ]
    if best and is_loadable(e.folder / "best"):
        given = ", space=space" if is_in_main(e.space) and splits else ""
        lines += [f"load        from Python: tuner.load_best({str(e.folder)!r}{given})"]
    if best and (retrain := retrain_command(record)):
        lines += [f"retrain     {retrain}"]
    lines += [f"dashboard   {command('serve', '--results', shlex.quote(str(e.folder.parent)))}"]
    if state == "finished" and diverged(record):  # more trials would diverge too
        return lines + [f"again       {again}" for again in [start_again(record)] if again]
    more = [twice(record)] if state == "finished" else []
    if state == "failed" and is_path(e.space):  # without --space, --resume refuses code that has changed
        more = [f"--space {shlex.quote(e.space)}"]
    how = " from Python:" if is_in_main(e.space) else ""
    return [*lines, f"{'extend' if state == 'finished' else 'resume'}     {how} {resume_command(record, *more)}"]


def shown(what: str, lines: Callable[..., list[str]], *arguments: Any) -> list[str]:
    """Returns the lines that a function makes; none, with a warning, if it raises an error."""
    with told(f"{what} is not shown"):
        return [*lines(*arguments)]
    return []


def files_line(record: ExperimentRecord, best: BestTrial) -> list[str]:
    """Return a line that says what the best trial of a function or script has saved, and of which epoch it is."""
    place = record.experiment.folder / "best"
    names = [path.removeprefix(f"{FILES}/") for path in sorted(checksums_in(place)) if path.startswith(f"{FILES}/")]
    trial = next(trial for trial in record.trials if trial.id == best.trial)
    outside = [*Written.read(record.experiment.folder / "ray" / best.trial).outside]
    too = f"; it also wrote to {listed(outside)}, which other trials may have replaced" if outside else ""
    if not names:
        known = is_loadable(place) or record.state != "finished"  # before the end, the files are in ray/TRIAL/files
        return [] if known else [f"files       none: the best trial wrote no file by a relative path{too}"]
    of = f", as they were after epoch {trial.last_epoch}, the trial's last" if best.epoch < trial.last_epoch else ""
    return [f"files       {listed(names)} in {place / FILES}{of}{too}"]


def front_lines(record: ExperimentRecord, best: BestTrial) -> list[str]:
    """Returns a line for each other point of the Pareto front, and one if the best trial breaks a constraint."""
    lines = [f"NOTE: no trial keeps all constraints; this one breaks them least: {best.broken}"] if best.broken else []
    if record.experiment.aim.several:
        names, rows = record.experiment.aim.named, front_rows(record)
        lines += [f"front       {counted(len(rows), 'trial')}: in {names}, none is worse than another trial in all"]
        for row in rows[1:]:
            found = f"trial {row.trial}, epoch {row.epoch}: {setting(row.values)}; {setting(row.config)}"
            lines += [f"  {row.point:<9} {found}"]
    return lines


def failures(trials: Sequence[TrialRecord], folder: Path) -> list[str]:
    """Returns a line for each of the newest MOST_WAYS kinds of failure, and a last line if there are other kinds."""
    ways: dict[str, list[TrialRecord]] = {}
    for trial in sorted(trials, key=lambda trial: trial.changed_at, reverse=True):
        if trial.status == "failed":
            ways.setdefault(likeness(trial.reason), []).append(trial)
    lines = []
    for newest, *others in list(ways.values())[:MOST_WAYS]:
        epochs = {trial.reports[-1].epoch + 1 if trial.reports else 1 for trial in (newest, *others)}
        first, last = min(epochs), max(epochs)
        epoch = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        who = f"{len(others) + 1} trials, {newest.id} the last," if others else f"trial {newest.id}"
        of_command = QUOTED in newest.reason  # whose own traceback, if any, is in what it has printed
        file, what = ("stderr", "all of its output") if of_command else ("error.txt", "full traceback")
        there = folder / "ray" / newest.id / file
        at = f"; {what}: {there}" if there.is_file() else ""
        lines += [f"failed      {who} in {epoch}: {with_cells(newest.reason)}{at}"]
    return lines + ([f"... and {len(ways) - MOST_WAYS} other errors, in trials.csv"] if len(ways) > MOST_WAYS else [])


def out_of_memory(trials: Sequence[TrialRecord]) -> list[str]:
    """Returns a line if trials have failed, all of them without memory, and no trial has succeeded."""
    failed = [trial for trial in trials if trial.status == "failed"]
    short = [trial for trial in failed if trial.failure == "oom" or NO_MEMORY.search(trial.reason)]
    if not failed or len(short) < len(failed) or any(trial.status in ("completed", "pruned") for trial in trials):
        return []
    who = "the only trial" if len(failed) == 1 else f"all {len(failed)} trials"
    return [f"NOTE: {who} ran out of memory: search smaller models, {LESS_MEMORY}"]


def growing(trials: Sequence[TrialRecord]) -> list[str]:
    """Returns a line per kind of memory that grew in most long trials; growth in a few is usually the allocator's."""
    lines = []
    for name, memory in GROWTH.items():
        most = {trial.id: max((r.metrics.get(name, 0) for r in trial.reports), default=0) for trial in trials}
        grown = [(by, trial) for trial, by in most.items() if by]
        num_long = sum(len(trial.reports) >= NEEDED or most[trial.id] > 0 for trial in trials)
        if 2 * len(grown) > num_long:
            by, trial = max(grown)
            where = f"in {len(grown)} of {num_long} long trials, by {by / 2**20:.1f} MiB per epoch in trial {trial}"
            cause = "a usual cause is a list of losses that keep their autograd graphs: store loss.item()"
            lines += [f"NOTE: {memory} grew from epoch to epoch {where} ({name} in the journal); {cause}"]
    return lines
