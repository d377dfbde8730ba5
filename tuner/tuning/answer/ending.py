"""Ends a session of a search: saves the answer and the report, and says what to print."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.engine.controller.failures import likeness
from tuner.errors import RequestError
from tuner.errors.users_code import with_cells
from tuner.record.records import TrialRecord
from tuner.record.report_keys import GROWTH
from tuner.record.results import ExperimentRecord, load
from tuner.record.texts import command, figures, setting
from tuner.spec.resources import Resources
from tuner.spec.spaces import is_in_main, is_path
from tuner.training.devices.usage import NEEDED
from tuner.tuning.answer.best import is_loadable
from tuner.tuning.answer.conclusion import Answer, conclude
from tuner.tuning.driver import Outcome
from tuner.tuning.output.console import banner, notes_on_metric, place
from tuner.tuning.requests import Request
from tuner.views.commands import as_argument, start_again, twice
from tuner.views.report import write_report
from tuner.views.verdict import diverged, ending_lines

MOST_WAYS = 5  # most kinds of failure that the end of a search lists; trials that failed alike are of one kind
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Done:
    """The result of a session: its request, the record of the search, the answer and how it ended."""

    request: Request
    record: ExperimentRecord
    answer: Answer | None
    outcome: Outcome

    @property
    def exit_code(self) -> int:
        """0 done; 1 no trial has a finite metric, every trial failed, or the search gave up; 130 interrupted."""
        if self.outcome.state == "interrupted":
            return 130
        succeeded = any(trial.status != "failed" for trial in self.record.trials)
        return 0 if self.answer and succeeded and self.outcome.state == "finished" else 1


def save_answer(request: Request, outcome: Outcome, resources: Resources) -> Done:
    """Writes trials.csv, `best/` and then report.html; a RequestError if it cannot, which an interrupt only logs."""
    experiment, folder = request.experiment, request.experiment.folder
    record, answer = load(folder), None
    try:
        ended = outcome.state == "finished"
        answer = conclude(record, request.loaded_space, request.splits, resources.cpus, resources.gpus, ended=ended)
        write_report(record)
    except OSError as error:
        again = f"the search itself is saved: free some space, then --resume {experiment.name} writes them"
        if outcome.state != "interrupted":
            raise RequestError(f"{folder}: the result files cannot be written ({error}); {again}") from None
        logger.warning("%s: the result files cannot be written (%s); %s", folder, error, again)
    return Done(request, record, answer, outcome)


def ending(done: Done) -> list[str]:
    """Returns the lines that a search prints at its end: the answer, or why there is none, and the next commands."""
    e, lines = done.request.experiment, [""]
    lines += failures(done.record.trials, e.folder)
    lines += growing(done.record.trials)
    if done.outcome.state == "failed":  # the reason repeats the error that the lines above have
        lines += ["the search was stopped, as these trials failed alike and none succeeded"]
        lines += ["correct the code: --resume then tries these trials again"]
    elif done.outcome.reason:
        lines += [f"NOTE: {'out of time: ' * done.record.out_of_time}{done.outcome.reason}"]
    if done.answer:
        report, trial = done.answer.report, done.answer.trial
        lines += [f"best        trial {trial.id}, epoch {report.epoch}: {setting(trial.config)}"]
        reported = "validation" if done.request.loaded_space.space.task else "reported  "
        lines += [f"{reported}  {figures(report.metrics, e.metric)}", *notes_on_metric(e)]
        if done.answer.test:
            lines += [f"test        {figures(done.answer.test)}"]
        elif done.request.splits is None:
            lines += ["test        none: the space is a function, so tuner knows no test set"]
        elif done.outcome.state != "finished":
            lines += ["test        not yet: the test set is used once, after the search has ended"]
        if done.request.splits and done.request.splits.notice:
            lines += [banner(done.request.splits.notice)]
    elif done.outcome.state == "interrupted":
        lines += ["no answer yet"]
    else:
        lines += [f"no answer: no trial has a finite {e.metric}; see {e.folder}/trials.csv"]
    lines += ending_lines(done.record)
    lines += [f"folder      {place(e)}"]
    if done.answer and is_loadable(e.folder / "best"):
        given = ", space=space" if is_in_main(e.space) and done.request.splits else ""
        lines += [f"load        from Python: tuner.load_best({str(e.folder)!r}{given})"]
    if done.answer and done.answer.report.checkpoint and done.record.retrainable:
        lines += [f"retrain     {command('train', shlex.quote(str(e.folder / 'best' / 'config.json')))}"]
    results = "" if e.results == "results" else f" --results {shlex.quote(e.results)}"
    lines += [f"dashboard   {command('serve', '--results', shlex.quote(str(e.folder.parent)))}"]
    finished = done.outcome.state == "finished"
    if finished and diverged(done.record):  # more trials would diverge too
        return lines + [f"again       {again}" for again in [start_again(done.record)] if again]
    goes_on = "extend     " if finished else "resume     "
    if is_in_main(e.space):
        options = [f"resume={e.name!r}"] + ([] if e.results == "results" else [f"results={e.results!r}"])
        options += [as_argument(twice(done.record))] if finished else []
        return [*lines, f"{goes_on} from Python: tuner.search(space, {', '.join(options)})"]
    if done.outcome.state == "failed" and is_path(e.space):  # without --space, --resume refuses code that has changed
        results += f" --space {shlex.quote(e.space)}"
    more = f" {twice(done.record)}" if finished else ""
    return [*lines, f"{goes_on} {command('run', f'--resume {e.name}{results}{more}')}"]


def failures(trials: Sequence[TrialRecord], folder: Path) -> list[str]:
    """Returns a line for each of the newest MOST_WAYS kinds of failure: number of trials, epochs, error, traceback."""
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
        traceback = folder / "ray" / newest.id / "error.txt"
        at = f"; full traceback: {traceback}" if traceback.is_file() else ""
        lines += [f"failed      {who} in {epoch}: {with_cells(newest.reason)}{at}"]
    return lines + ([f"... and {len(ways) - MOST_WAYS} other errors, in trials.csv"] if len(ways) > MOST_WAYS else [])


def growing(trials: Sequence[TrialRecord]) -> list[str]:
    """Returns a line per kind of memory that kept growing in most of the trials that were long enough to tell.

    A leak is in the code that all trials run. Growth in few of them is mostly the allocator's: in one of the four long
    trials of LeNet on CIFAR-10, the heap grew by 4 MiB per epoch.
    """
    lines = []
    for name, memory in GROWTH.items():
        most = {trial.id: max((r.metrics.get(name, 0) for r in trial.reports), default=0) for trial in trials}
        grown = [(by, trial) for trial, by in most.items() if by]
        num_long = sum(len(trial.reports) >= NEEDED or most[trial.id] > 0 for trial in trials)
        if 2 * len(grown) > num_long:
            by, trial = max(grown)
            lines += [
                f"NOTE: {memory} grew from epoch to epoch in {len(grown)} of {num_long} long trials, by "
                f"{by / 2**20:.1f} MiB per epoch in trial {trial} ({name} in the journal); a usual cause is a list of "
                f"losses that keep their autograd graphs: store loss.item()"
            ]
    return lines
