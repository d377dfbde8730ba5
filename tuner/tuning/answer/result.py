"""SearchResult: what `tuner.search` returns and `tuner.load` reads from an experiment's folder."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors import RequestError, blamed
from tuner.errors.one_line import in_one_line
from tuner.errors.users_code import with_cells
from tuner.record.results import ExperimentRecord
from tuner.record.results import load as load_record
from tuner.record.storage.trial_files import FILES
from tuner.record.texts import figures, formatted, setting
from tuner.spec.parameters import merged
from tuner.tuning.answer.best import CHECKPOINT, metrics_in
from tuner.tuning.answer.conclusion import trials_table
from tuner.views.figures.drawing import escaped
from tuner.views.tables import counts, trial_rows

if TYPE_CHECKING:
    from ray import tune

MOST_SHOWN = 10  # most trials in a notebook's view of a search
LEFT = "<td style='text-align:left'>"


@dataclass(frozen=True)
class BestTrial:
    """The best trial so far: its config, its metrics at its best `epoch`, and its `test` metrics (None if not tested).

    `checkpoint` (a Ray Checkpoint of that epoch) and `files` (the folder of what a `Space(train=...)` wrote by relative
    paths) are None for a Task, and until the search has ended.
    """

    trial: str
    epoch: int
    config: dict[str, Any]
    metrics: dict[str, Any]
    test: dict[str, Any] | None = None
    _best: Path | None = field(default=None, repr=False)  # the folder best/; None if best/ has another trial or epoch

    @property
    def checkpoint(self) -> tune.Checkpoint | None:
        from ray import tune

        saved = self._folder(CHECKPOINT)
        return tune.Checkpoint.from_directory(saved) if saved else None

    @property
    def files(self) -> Path | None:
        return self._folder(FILES)

    def _folder(self, name: str) -> Path | None:
        return self._best / name if self._best and (self._best / name).is_dir() else None


@dataclass(frozen=True)
class SearchResult:
    """A search as it was when its folder was read; `refreshed()` reads the folder again.

    Attributes:
        folder: the experiment's folder.
        state: running, finished, interrupted or failed.
    """

    folder: Path
    state: str
    _record: ExperimentRecord = field(repr=False)

    @cached_property
    def best(self) -> BestTrial | None:
        """The best trial so far; None if no trial has a finite metric.

        Raises a RequestError with the first failure if the search has ended and every trial failed.
        """
        winner, trials = self._record.best(), self._record.trials
        if winner is None:
            if self.state in ("finished", "failed") and trials and all(trial.status == "failed" for trial in trials):
                first = min(trials, key=lambda trial: trial.changed_at)
                told = "the only trial" if len(trials) == 1 else f"all {len(trials)} trials"
                trace = f"the full traceback is in {self.folder}/ray/{first.id}/error.txt"
                with in_one_line():
                    why = with_cells(first.reason)
                    raise RequestError(f"no best trial: {told} failed, {first.id} first: {why}; {trace}")
            return None
        trial, report = winner
        config = merged(self._record.constants, trial.config)
        best = self.folder / "best"
        saved = metrics_in(best, report, trial=trial.id, epoch=report.epoch)
        test = (saved or {}).get("test")
        return BestTrial(trial.id, report.epoch, config, dict(report.metrics), test, best if saved else None)

    @cached_property
    def trials(self) -> Any:
        """A pandas DataFrame with one row per trial and the columns of trials.csv."""
        columns, *rows = trials_table(self._record)
        pandas: Any = importlib.import_module("pandas")
        return pandas.DataFrame(rows, columns=columns)

    @property
    def errors(self) -> list[str]:
        """The last error of each failed trial, in the order of the trials; empty if none failed."""
        return [trial.errors[-1] for trial in self._record.trials if trial.status == "failed" and trial.errors]

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Name -> Plotly figure: `curves`, `history`, `parallel`, `slices`, `usage`, `timeline`, if they have data."""
        from tuner.views.figures.catalogue import all_figures

        plotly: Any = importlib.import_module("plotly.graph_objects")
        return {name: plotly.Figure(figure) for name, figure in all_figures(self._record).items()}

    def refreshed(self) -> SearchResult:
        """Reads the search's folder again."""
        return load(self.folder)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        e = self._record.experiment
        rows = [row for row in trial_rows(self._record) if isinstance(row.best, (int, float))]
        rows.sort(key=lambda row: float(row.best or 0), reverse=e.mode == "max")
        head = "".join(
            f"<th>{escaped(each)}</th>" for each in ("trial", "status", "epochs", f"best {e.metric}", "setting")
        )
        body = ""
        for row in rows[:MOST_SHOWN]:
            cells = (row.trial, row.status, str(row.epochs), formatted(row.best), setting(row.config))
            body += f"<tr>{''.join(f'{LEFT}{escaped(each, 200)}</td>' for each in cells)}</tr>"
        text = "<br>".join(escaped(line, 1000) for line in self._lines())
        return f"<p>{text}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _lines(self) -> list[str]:
        e = self._record.experiment
        totals = ", ".join(f"{count} {status}" for status, count in counts(self._record).items() if count) or "no trial"
        lines = [f"{e.name}: {self.state}; {totals}"]
        best = self.best if self._record.best() else None
        if best is None:
            lines += [f"best        none: no trial has a finite {e.metric}"]
        else:
            lines += [f"best        trial {best.trial}, epoch {best.epoch}: {setting(best.config)}"]
            lines += [f"validation  {figures(best.metrics, e.metric)}"]
            lines += [f"test        {figures(best.test)}"] if best.test else []
        return [*lines, f"folder      {self.folder}"]


def load(folder: str | PathLike[str]) -> SearchResult:
    """Reads the folder of an experiment, which may still run; writes nothing and runs no code of the folder.

    Raises a RequestError if the folder has no experiment, or it is damaged.
    """
    place = Path(folder)
    with blamed(str(place)):
        record = load_record(place)
    return SearchResult(place, record.state, record)
