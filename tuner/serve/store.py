"""The experiments of a results folder, each read anew only when its files have changed."""

from __future__ import annotations

import os
import shlex
import stat
import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from tuner.errors import RequestError, blamed
from tuner.record.files import SWELL, is_file_in
from tuner.record.foreign import files_of, is_ray_folder
from tuner.record.lock import abandoned
from tuner.record.reading import NotYet, Reading
from tuner.record.results import KILLED, ExperimentRecord, Following
from tuner.serve.answers import text_of
from tuner.spec.experiment import Experiment
from tuner.views import tables
from tuner.views.figures import all_figures
from tuner.views.tables import BestRow

MOST_MEMORY = 1 << 30  # bytes that records take, by `weight`, while they stay in memory; one experiment always stays
MOST_UNFINISHED = 4 << 30  # the same with those whose journals are not yet read to the end, which would begin anew
LEAST_WEIGHT = 100_000  # bytes, of an experiment whose files are small
MOST_JOURNAL_BYTES = 512 << 20  # of one journal: a million trials of three reports, 2 GB of memory
MOST_READERS = 24  # requests that read or wait for it, of the 40 that are answered at a time
VIEW_S = 10.0  # for reading what one request asks for, before it is told to ask again
LIST_S, EACH_S = 2.0, 0.5  # for all that the list has to read, and for each experiment of it
AGAIN_S = 5.0  # until what could not be read is tried again
LONG_LOOK_S, LOOK_SHARE = 0.05, 20  # a look that takes longer is taken for 1 / LOOK_SHARE of the time
MOST_SUMMARY = 64 << 10  # bytes as JSON: a row of the list, which has thousands


class NotThere(RequestError):
    """There is no experiment of that name."""


@dataclass(frozen=True)
class Summary:
    """One experiment in a line. Times are unix seconds, `took_s` leaves out the time between two sessions.

    `epochs` is how many all trials have trained together, `lines` how many events had been journaled: what `events`
    can be followed after; `killed` that its process ended without a word. Where its files cannot be read, `error` says
    why, `state` is damaged and the rest is empty; `reading` is the state of one whose journal takes long to read.
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
        with blamed(self.summary.name):
            return to_json(all_figures(self.record))


@dataclass(frozen=True)
class _Last:
    """What was read last: at `stamp`, in `took_s`, at `time`; `view` is None where the summary has an error, or where
    the memory was needed for others."""

    stamp: object
    summary: Summary
    view: View | None
    took_s: float
    time: float

    @property
    def is_told(self) -> bool:
        """Whether a look at the folder would find the same: an error that may pass is looked at again."""
        return not self.summary.error or time.monotonic() < self.time + max(AGAIN_S, 20 * self.took_s)


class _Kept:
    """One experiment's folder as it is read. Its lock is its own: whoever reads another one does not wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last: _Last | None = None
        self._lock = threading.Lock()
        self._followed = Following(folder, MOST_JOURNAL_BYTES)
        self._looks_again = 0.0

    @property
    def is_read(self) -> bool:
        """Whether its journal was read to its end, so that its summary stays without its records."""
        return self.last is not None

    @property
    def weight(self) -> int:
        """About how many bytes of memory its records take; 0 where none are kept."""
        last = self.last
        of_files = SWELL * _bytes_of(last.stamp) if last and last.view else 0
        journal = self._followed.reading.weight
        return max(of_files, journal, LEAST_WEIGHT) if of_files or journal else 0

    def known(self) -> _Last | None:
        """What was read last, if nothing has changed since, as far as the folder has been looked at."""
        last, began = self.last, time.monotonic()
        if last is None or not last.is_told:
            return None
        if began < self._looks_again:
            return last
        has_news, took_s = _has_news(self.folder, last.stamp, last.summary), time.monotonic() - began
        self._looks_again = began + LOOK_SHARE * took_s if took_s > LONG_LOOK_S else 0.0
        return None if has_news else last

    def read(self, until: float) -> _Last:
        """The folder as it is now; NotYet where that takes longer."""
        if not self._lock.acquire(timeout=max(0.0, until - time.monotonic())):
            raise NotYet("its folder is being read; ask again")
        try:
            last = self.known()
            if last is None or not (last.view or last.summary.error):
                began, stamp, view = time.monotonic(), _stamp(self.folder), None
                try:
                    view = _read(self._followed, until)
                    summary = view.summary
                except NotYet:
                    raise
                except RequestError as error:
                    summary = Summary(self.folder.name, state="damaged", error=str(error))
                now = time.monotonic()
                last = self.last = _Last(stamp, summary, view, now - began, now)
            return last
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Gives the memory of its records back; its summary stays. Nothing where it is being read."""
        if self._lock.acquire(blocking=False):
            if self.last:
                self.last = replace(self.last, view=None)
            self._followed = Following(self.folder, MOST_JOURNAL_BYTES)
            self._lock.release()


class Store:
    """Reads experiments under one folder; safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.root = folder.absolute()
        self._lock = threading.Lock()  # of the map; never held while a file is read
        self._kept: dict[str, _Kept] = {}
        self._weights: OrderedDict[str, int] = OrderedDict()  # of those in memory, the one asked for last at the end
        self._readers = threading.Semaphore(MOST_READERS)
        self._listing = threading.Lock()
        self._listed: tuple[float, list[Summary]] = -1.0, []  # when the last list was begun, and that
        self._first = ""  # the name that the next list begins with

    def summaries(self) -> list[Summary]:
        """Every experiment, the one that was started last first.

        One that cannot be read has its `error`. One that takes long to read is as it was, or `reading`: the next look
        goes on from there. Whoever asks while a list is made gets the next one, which is made once for all of them.
        """
        asked = time.monotonic()
        with self._listing:
            if self._listed[0] < asked:
                self._listed = time.monotonic(), self._all()
            return self._listed[1]

    def _all(self) -> list[Summary]:
        try:
            names = sorted(os.listdir(self.root))
        except OSError as error:
            raise RequestError(f"{self.root} cannot be read: {error.strerror}") from None
        self._drop_gone(names)
        until = time.monotonic() + LIST_S
        place, found, late = bisect_left(names, self._first), [], ""
        for name in (*names[place:], *names[:place]):
            if not late and time.monotonic() > until:
                late = name
            found.append(self._unread(name) if late else self._summary(name, until))
        self._first = late
        return sorted((s for s in found if s), key=lambda s: (s.started or 0, s.name), reverse=True)

    def _drop_gone(self, names: list[str]) -> None:
        """Forgets all of the experiments that are there no more."""
        with self._lock:
            for gone in self._kept.keys() - set(names):
                del self._kept[gone]
                self._weights.pop(gone, None)

    def _unread(self, name: str) -> Summary | None:
        """What is known of an experiment without a look at its files."""
        kept = self._kept.get(name)
        if kept and kept.last:
            return kept.last.summary
        there = _is_name(name) and os.path.lexists(self.root / name / "experiment.json")
        return Summary(name, state="reading", notice="others are being read; ask again") if there else None

    def view(self, name: str) -> View:
        """The experiment as its files have it now; NotThere, NotYet, or RequestError where they are damaged."""
        last = self._look(name, time.monotonic() + VIEW_S)
        if last.view is None:
            raise RequestError(last.summary.error)
        return last.view

    def journal(self, name: str) -> Path:
        """The experiment's journal, which may not have been begun; NotThere."""
        return self.folder(name) / "journal.jsonl"

    def folder(self, name: str) -> Path:
        """The experiment's folder, surely inside the results folder: its name is one, and nothing there is a link."""
        folder = self.root / name if _is_name(name) else None
        if folder is None or not _is_experiment(folder):
            raise NotThere(f"no experiment of that name in {self.root}")
        if any(map(os.path.islink, (folder, folder / "experiment.json", folder / "journal.jsonl"))):
            raise NotThere("that experiment is a link, and links are not followed")
        return folder

    def _look(self, name: str, until: float) -> _Last:
        folder = self.folder(name)
        with self._lock:
            kept = self._kept.get(name) or self._kept.setdefault(name, _Kept(folder))
            if name in self._weights:
                self._weights.move_to_end(name)
        last = kept.known()
        if last and (last.view or last.summary.error):
            return last
        if not self._readers.acquire(blocking=False):
            raise NotYet("others are being read; ask again")
        try:
            last = kept.read(until)
        finally:
            self._readers.release()
            self._make_room(name)
        return last

    def _make_room(self, name: str) -> None:
        """Forgets the records that nobody asked for for longest; those of `name` stay."""
        with self._lock:
            if name not in self._kept:
                return  # its folder went meanwhile
            self._weights[name] = self._kept[name].weight
            self._weights.move_to_end(name)
            total = sum(self._weights.values())
            for other in [*self._weights]:
                if total <= MOST_MEMORY or other == name:
                    break
                if total > MOST_UNFINISHED or self._kept[other].is_read:
                    total -= self._weights.pop(other)
                    self._kept[other].forget()

    def _summary(self, name: str, until: float) -> Summary | None:
        kept = self._kept.get(name)
        try:
            self.folder(name)
            last = kept.known() if kept else None
            return (last or self._look(name, min(until, time.monotonic() + EACH_S))).summary
        except NotThere:
            return None
        except NotYet as error:
            before = kept.last.summary if kept and kept.last else None
            return before or Summary(name, state="reading", notice=str(error))


def _is_name(name: str) -> bool:
    try:
        return bool(name) and Experiment(name=name).name == name
    except RequestError:
        return False


def _is_experiment(folder: Path) -> bool:
    """Whether it is to be shown: an experiment, or a folder that nobody here may look into."""
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return False
        os.lstat(folder / "experiment.json")
        return True
    except PermissionError:
        return True
    except (OSError, ValueError):
        pass
    try:
        return is_ray_folder(folder)
    except OSError as error:
        return isinstance(error, PermissionError)


def _stamp(folder: Path) -> object:
    """Changes whenever a file that `_read` reads does."""
    files = [folder / "experiment.json", folder / "journal.jsonl", folder / "best" / "config.json"]
    try:
        return [_stat(path) for path in (files if os.path.lexists(files[0]) else files_of(folder))]
    except (OSError, RequestError):
        return [_stat(folder)]


def _bytes_of(stamp: object) -> int:
    """The size of the files that a stamp is of."""
    return sum(found[0] for found in stamp if len(found) > 1) if isinstance(stamp, list) else 0


def _has_news(folder: Path, stamp: object, summary: Summary) -> bool:
    """Whether files changed since, or a search that ran has no process any more, of which they tell nothing."""
    return stamp != _stamp(folder) or (summary.state == "running" and abandoned(folder))


def _stat(path: Path) -> tuple[int, ...]:
    try:
        found = path.lstat()
        return found.st_size, found.st_mtime_ns, found.st_ino, found.st_mode
    except OSError as error:
        return (error.errno or 0,)


def _read(followed: Following, until: float) -> View:
    # The events that are sent as news are those behind the lines that this record holds.
    with blamed(followed.folder.name):
        record = followed.load(until)
        summary = _summarise(record, followed.reading)
        if len(text_of(summary)) > MOST_SUMMARY:
            raise RequestError(
                f"{followed.folder} has names or values of more than {MOST_SUMMARY:,} bytes in its summary"
            )
        return View(record, summary)


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
        retrain=f"python -m tuner.train {shlex.quote(str(winner))}" if is_file_in(e.folder, "best/config.json") else "",
    )


def _took_s(record: ExperimentRecord) -> float:
    """From the first start to the last report of a folder that has no journal."""
    spans = [span for trial in record.trials for span in trial.spans]
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0.0
