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
from tuner.views.labels import escaped
from tuner.views.tables import counts, trial_rows

if TYPE_CHECKING:
    from ray import tune

MOST_SHOWN = 10  # most trials in a notebook's view of a search


@dataclass(frozen=True)
class BestTrial:
    """The best trial so far: its config, its metrics at its best `epoch`, and its `test` metrics (None if not tested).

    `checkpoint` is the Ray Checkpoint that a `Space(train=...)` saved at that epoch, and `files` the folder of what it
    wrote by relative paths. Both are None for a Task, and until the search has ended.
    """

    trial: str
    epoch: int
    config: dict[str, Any]
    metrics: dict[str, Any]
    test: dict[str, Any] | None = None
    _best: Path | None = field(default=None, repr=False)  # the folder best/; None if best/ has another trial or epoch

    @property
    def checkpoint(self) -> tune.Checkpoint | None:
        saved = self._best and self._best / CHECKPOINT
        if not (saved and saved.is_dir()):
            return None
        from ray import tune

        return tune.Checkpoint.from_directory(saved)

    @property
    def files(self) -> Path | None:
        saved = self._best and self._best / FILES
        return saved if saved and saved.is_dir() else None


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

        Raises:
            RequestError: the search has ended and every trial failed; the text has the first failure.
        """
        winner = self._record.best()
        if winner is None:
            with in_one_line():
                self._check_failed()
            return None
        trial, report = winner
        config = merged(self._record.constants, trial.config)
        best = self.folder / "best"
        saved = metrics_in(best, report, trial=trial.id, epoch=report.epoch)
        test = (saved or {}).get("test")
        return BestTrial(trial.id, report.epoch, config, dict(report.metrics), test, best if saved else None)

    def _check_failed(self) -> None:
        """Raises RequestError if the search has ended and every trial failed."""
        trials = self._record.trials
        if self.state not in ("finished", "failed") or not trials or any(trial.status != "failed" for trial in trials):
            return
        first = min(trials, key=lambda trial: trial.changed_at)
        told = "the only trial" if len(trials) == 1 else f"all {len(trials)} trials"
        raise RequestError(
            f"no best trial: {told} failed, {first.id} first: {with_cells(first.reason)}; the full traceback is in "
            f"{self.folder}/ray/{first.id}/error.txt"
        )

    @cached_property
    def trials(self) -> Any:
        """One row per trial with the columns of trials.csv: a pandas DataFrame, or a list of dicts without pandas."""
        columns, *rows = trials_table(self._record)
        try:
            pandas: Any = importlib.import_module("pandas")
        except ImportError:
            return [dict(zip(columns, row, strict=True)) for row in rows]
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
        metric, mode = self._record.experiment.metric, self._record.experiment.mode
        rows = [row for row in trial_rows(self._record) if isinstance(row.best, (int, float))]
        rows.sort(key=lambda row: float(row.best or 0), reverse=mode == "max")
        cells = [
            [row.trial, row.status, str(row.epochs), formatted(row.best), setting(row.config)]
            for row in rows[:MOST_SHOWN]
        ]
        head = "".join(
            f"<th>{escaped(each)}</th>" for each in ("trial", "status", "epochs", f"best {metric}", "setting")
        )
        body = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{escaped(each, 200)}</td>" for each in row) + "</tr>"
            for row in cells
        )
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

    Raises:
        RequestError: the folder has no experiment, or it is damaged.
    """
    place = Path(folder)
    with blamed(str(place)):
        record = load_record(place)
    return SearchResult(place, record.state, record)
