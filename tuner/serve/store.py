"""The experiments of a results folder, each read anew only when its files have changed."""

from __future__ import annotations

import shlex
import threading
from collections import OrderedDict
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from tuner.errors import RequestError
from tuner.experiment import Experiment
from tuner.figures import all_figures
from tuner.foreign import files_of, is_ray_folder
from tuner.reading import Reading
from tuner.results import KILLED, ExperimentRecord, Following
from tuner.resume.lock import abandoned
from tuner.views import tables
from tuner.views.tables import BestRow

MOST_LINES = 500_000  # of the journals whose records stay in memory: about 500 MB; one journal always stays


class NotThere(RequestError):
    """There is no experiment of that name."""


@dataclass(frozen=True)
class Summary:
    """One experiment in a line. Times are unix seconds, `took_s` leaves out the time between two sessions.

    `epochs` is how many all trials have trained together, `lines` how many events had been journaled: what `events`
    can be followed after; `killed` that its process ended without a word. Where its files cannot be read, `error` says
    why and the rest is empty.
    """

    name: str
    error: str = ""
    space: str = ""
    state: str = ""
    killed: bool = False
    searcher: str = ""
    scheduler: str = ""
    metric: str = ""
    mode: str = ""
    num_samples: int = 0
    max_epochs: int = 0
    grace_period: int = 1
    reduction_factor: float = 2
    seed: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    best: BestRow | None = None
    started: float | None = None
    updated: float | None = None
    epochs: int = 0
    took_s: float = 0
    lines: int = 0
    notice: str = ""
    resume: str = ""
    retrain: str = ""


@dataclass(frozen=True)
class View:
    """An experiment's record with its summary, and what is worked out of it once for all who ask until it has news."""

    record: ExperimentRecord
    summary: Summary

    @cached_property
    def figures(self) -> bytes:
        """`all_figures` as JSON."""
        return to_json(all_figures(self.record))


class Store:
    """Reads experiments under one folder; safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.root = folder.absolute()
        self._lock = threading.Lock()
        self._views: OrderedDict[str, tuple[object, View]] = OrderedDict()
        self._followed: dict[str, Following] = {}
        self._summaries: dict[str, tuple[object, Summary]] = {}

    def summaries(self) -> list[Summary]:
        """Every experiment, the one that was started last first; one that cannot be read has its `error` said."""
        found = [self._summary(path.name) for path in self.root.iterdir() if _is_experiment(path)]
        return sorted((s for s in found if s), key=lambda s: (s.started or 0, s.name), reverse=True)

    def view(self, name: str) -> View:
        """The experiment as its files have it now; NotThere, or RequestError where they are damaged."""
        folder = self._folder(name)
        with self._lock:
            kept = self._views.get(name)
            if kept is None or _has_news(folder, kept[0], kept[1].summary):
                kept = (_stamp(folder), _read(self._followed.setdefault(name, Following(folder))))
            self._views[name] = kept
            self._views.move_to_end(name)
            self._summaries[name] = (kept[0], kept[1].summary)
            while len(self._views) > 1 and sum(view.summary.lines for _, view in self._views.values()) > MOST_LINES:
                self._followed.pop(self._views.popitem(last=False)[0], None)
            return kept[1]

    def journal(self, name: str) -> Path:
        """The experiment's journal, which may not have been begun; NotThere."""
        return self._folder(name) / "journal.jsonl"

    def _folder(self, name: str) -> Path:
        """The experiment's folder, surely inside the results folder: its name is one, and nothing there is a link."""
        folder = self.root / name if _is_name(name) else None
        if folder is None or not _is_experiment(folder):
            raise NotThere(f"no experiment of that name in {self.root}")
        if any(path.is_symlink() for path in (folder, folder / "experiment.json", folder / "journal.jsonl")):
            raise NotThere("that experiment is a link, and links are not followed")
        return folder

    def _summary(self, name: str) -> Summary | None:
        try:
            folder = self._folder(name)
            kept = self._summaries.get(name)
            return kept[1] if kept and not _has_news(folder, *kept) else self.view(name).summary
        except NotThere:
            return None
        except RequestError as error:
            return Summary(name, error=str(error))


def _is_name(name: str) -> bool:
    try:
        return bool(name) and Experiment(name=name).name == name
    except RequestError:
        return False


def _is_experiment(folder: Path) -> bool:
    return (folder / "experiment.json").is_file() or is_ray_folder(folder)


def _stamp(folder: Path) -> object:
    """Changes whenever a file that `_read` reads does."""
    files = [folder / "experiment.json", folder / "journal.jsonl", folder / "best" / "config.json"]
    return [_stat(path) for path in (files if files[0].exists() else files_of(folder))]


def _has_news(folder: Path, stamp: object, summary: Summary) -> bool:
    """Whether files changed since, or a search that ran has no process any more, of which they tell nothing."""
    return stamp != _stamp(folder) or (summary.state == "running" and abandoned(folder))


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
        return stat.st_size, stat.st_mtime_ns, stat.st_ino
    except FileNotFoundError:
        return None


def _read(followed: Following) -> View:
    folder = followed.folder
    try:
        # The events that are sent as news are those behind the lines that this record holds.
        record = followed.load()
        return View(record, _summarise(record, followed.reading))
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise RequestError(f"{folder.name} cannot be read: {type(error).__name__}: {error}") from error


UNRECORDED: dict[str, Any] = {
    "space": "a folder of Ray Tune",
    "searcher": "not recorded",
    "scheduler": "not recorded",
}


def requested(experiment: Experiment) -> Summary:
    """What an experiment is to do, in a line; what it has done is not in it."""
    shared = {each.name for each in fields(Experiment)} & {each.name for each in fields(Summary)}
    return Summary(**{name: getattr(experiment, name) for name in shared})


def _summarise(record: ExperimentRecord, reading: Reading) -> Summary:
    e, facts = record.experiment, record.facts
    ours = not facts.get("foreign")
    winner = e.folder / "best" / "config.json"
    more = "" if record.state in ("interrupted", "running") else f" --num-samples {e.num_samples * 2}"
    return replace(
        requested(e),
        **({} if ours else UNRECORDED),
        state=record.state,
        killed=record.reason == KILLED,
        counts=tables.counts(record),
        best=tables.best_row(record),
        started=facts.get("created"),
        updated=reading.updated if ours else max((t.spans[-1][1] for t in record.trials if t.spans), default=None),
        epochs=record.standing.epochs,
        took_s=round(reading.took_s if ours else _took_s(record), 1),
        lines=reading.lines,
        notice=" · ".join(filter(None, (record.reason, (facts.get("data") or {}).get("notice")))),
        resume=f"python -m tuner.run --resume {e.name} --results {shlex.quote(e.results)}{more}" if ours else "",
        retrain=f"python -m tuner.train {shlex.quote(str(winner))}" if winner.is_file() else "",
    )


def _took_s(record: ExperimentRecord) -> float:
    """From the first start to the last report of a folder that has no journal."""
    spans = [span for trial in record.trials for span in trial.spans]
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0.0
