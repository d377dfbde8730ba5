"""Routes that keep the list of experiments in order: notes, archive, rename, delete, and downloads of the best model.

The guard checks the token of each request that changes something. A folder is changed through file descriptors, so that
no link is followed (`tuner.record.folder`).
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, BinaryIO

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tuner.errors import RequestError
from tuner.record import folder as folders
from tuner.record import notes as saved_notes
from tuner.record.notes import Notes, read_notes
from tuner.record.reading import NotYet
from tuner.record.saved_experiment import load_experiment
from tuner.record.storage.files import open_in
from tuner.record.storage.lock import driver_of
from tuner.serve.actions import ServedExperiments, Shown
from tuner.serve.answers import Refused, answer
from tuner.serve.client import BUSY
from tuner.serve.reading.results_reader import NotThere
from tuner.spec.experiment import LATEST, NAMES
from tuner.spec.places import is_uri

MOST_DOWNLOADS = 20  # that are sent at once
CHUNK_BYTES = 256 << 10
MOST_COUNTED = 4  # folders whose files are counted at once
_counting = threading.Semaphore(MOST_COUNTED)
_saving = threading.Lock()  # notes.json is read, changed and written by one request at a time


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Note(_Body):
    """The tags and notes of an experiment; they replace the saved ones."""

    tags: Annotated[list[str], Field(max_length=saved_notes.MOST_TAGS)] = []
    notes: Annotated[str, Field(max_length=saved_notes.MOST_CHARS)] = ""


class Archive(_Body):
    """Whether the page hides an experiment from its list."""

    archived: bool = True


class NewName(_Body):
    """The new name of an experiment."""

    name: Annotated[str, Field(min_length=1, max_length=100)]


@dataclass(frozen=True)
class BestFile:
    """A file of the experiment's folder `best/`: its path below that folder, and its size."""

    path: str
    size_bytes: int


@dataclass(frozen=True)
class BestFiles:
    """The files of the best model, at most 100."""

    files: list[BestFile]


@dataclass(frozen=True)
class Contents:
    """What an experiment's folder holds, and a deletion would lose.

    `files` and `size_bytes` count regular files; `is_whole` is False if the folder has too many to count. `checkpoints`
    counts saved checkpoints. `best` lists the files of the best model, at most 100. `kept` says why the experiment
    cannot be renamed or deleted now.
    """

    trials: int
    epochs: int
    files: int
    size_bytes: int
    is_whole: bool
    checkpoints: int
    best: list[BestFile]
    kept: str


@dataclass(frozen=True)
class Deleted:
    """The name of a deleted experiment; `left` says which of its files could not be deleted, and why."""

    name: str
    left: str


class Housekeeping:
    """Changes the folders of the served experiments."""

    def __init__(self, served: ServedExperiments) -> None:
        self._served = served

    def save(self, name: str, **changed: object) -> Shown:
        """Replaces these fields of an experiment's notes.json; returns its summary."""
        path = self._served.reader.folder(name)
        with _saving, folders.opened(path) as opened:
            try:
                notes = read_notes(path)
            except RequestError:
                if "notes" not in changed:
                    raise
                notes = Notes()  # saving the notes replaces a damaged file
            folders.write_in(opened, saved_notes.FILE, replace(notes, **changed).text())  # type: ignore[arg-type]
        return self._served.one(name)

    def contents(self, name: str) -> Contents:
        """Returns what an experiment's folder holds, and why it cannot be deleted, if so."""
        trials = epochs = 0
        try:
            view = self._served.view(name)
            trials, epochs = len(view.record.trials), view.summary.epochs
            path = self._served.reader.folder(name)
        except NotThere:
            self._served.view(name)  # raises if no search of that name was requested either
            return Contents(0, 0, 0, 0, True, 0, [], "")
        except NotYet:
            raise
        except RequestError:
            path = self._served.reader.folder(name)  # a damaged experiment can be deleted too
        try:
            self._refuse_running(name)
            driver = driver_of(path)  # holds the driver's lock only for a moment
            kept = f"{name} is run by {driver}; stop it first" if driver else ""
        except NotYet:
            raise
        except RequestError as error:
            kept = str(error)
        with _counted(), folders.opened(path) as opened:
            size = folders.size_of(opened)
            best = [BestFile(*each) for each in folders.files_in(opened, "best")]
        return Contents(trials, epochs, size.files, size.size_bytes, size.is_whole, size.checkpoints, best, kept)

    def best_files(self, name: str) -> list[BestFile]:
        """Returns the files of an experiment's folder `best/`; none if it has no best model, or no folder yet."""
        try:
            path = self._served.reader.folder(name)
        except NotThere:
            self._served.view(name)
            return []
        with folders.opened(path) as opened:
            return [BestFile(*each) for each in folders.files_in(opened, "best")]

    def rename(self, name: str, new: str) -> Shown:
        """Renames an experiment; returns its summary."""
        pattern, allowed = NAMES["name"]
        if not re.fullmatch(pattern, new, re.ASCII) or new == LATEST:
            raise RequestError(f"name {new!r}: must be {allowed}, and not {LATEST}")
        if new == name:
            return self._served.one(name)
        path = self._served.reader.folder(name)
        if is_uri(_saved_results(path)):
            raise Refused(409, f"{name} is a working copy of an object store, where it would keep its name")
        self._refuse_running(name)
        if self._served.asked and self._served.asked.get(new):
            raise Refused(409, f"{new} already exists; give another name")
        with self._served.idle(name, new), folders.opened(path) as opened, folders.without_driver(opened):
            folders.rename(opened, new)
            if self._served.asked:
                self._served.asked.rename(name, new)
        return self._served.one(new)

    def delete(self, name: str) -> Deleted:
        """Deletes an experiment, or forgets a requested search that has no folder."""
        try:
            path = self._served.reader.folder(name)
        except NotThere:
            if not (self._served.asked and self._served.asked.get(name)) or os.path.lexists(
                self._served.reader.root / name
            ):
                raise
            with self._served.idle(name):
                self._served.asked.forget(name)
            return Deleted(name, "")
        self._refuse_running(name)
        with self._served.idle(name), folders.opened(path) as opened, folders.without_driver(opened):
            aside = folders.set_aside(opened)
            if self._served.asked:
                self._served.asked.forget(name)
            return Deleted(name, folders.remove(opened, aside))

    def _refuse_running(self, name: str) -> None:
        """Raises Refused if a search waits or runs, maybe on a host whose lock is not seen here."""
        try:
            state = self._served.one(name).state
        except NotYet:
            raise
        except RequestError:
            return  # damaged: the lock alone decides
        if state in BUSY:
            killed = ", or end it with --resume and Ctrl-C if it was killed" if state == "running" else ""
            raise Refused(409, f"{name} is {state}; stop it first{killed}")

    def best_file(self, name: str, path: str) -> tuple[BinaryIO, int, str]:
        """Opens a file of an experiment's folder `best/`; returns it, its size, and a safe name for a download.

        Raises:
            NotThere: there is no such experiment or file, or a link leads to it.
        """
        try:
            file = open_in(self._served.reader.folder(name), f"best/{path}")
        except (OSError, ValueError):
            raise NotThere(f"{name} has no file of that name in best/") from None
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{name}-{path}")[-150:].lstrip(".-")
        return file, os.fstat(file.fileno()).st_size, safe or "best"


def _saved_results(folder: Path) -> str:
    """Returns the `results` that experiment.json records; empty if it is damaged."""
    try:
        return load_experiment(folder)[0].results
    except RequestError:
        return ""


@contextmanager
def _counted() -> Iterator[None]:
    """Limits how many folders are counted at once, because that may take seconds; raises Refused at the limit."""
    if not _counting.acquire(blocking=False):
        raise Refused(503, f"{MOST_COUNTED} folders are being counted, which is the limit; try again")
    try:
        yield
    finally:
        _counting.release()


class Download(StreamingResponse):
    """Streams the first `size` bytes of an open file; closes it at the end, also if the client disconnects early."""

    def __init__(self, file: BinaryIO, size: int, name: str, end: Callable[[], object]) -> None:
        headers = {"Content-Length": str(size), "Content-Disposition": f'attachment; filename="{name}"'}
        super().__init__(self._chunks(file, size), headers=headers, media_type="application/octet-stream")
        self._file, self._end = file, weakref.finalize(self, end)  # runs even if the response is never sent

    @staticmethod
    def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
        while size > 0 and (chunk := file.read(min(size, CHUNK_BYTES))):
            size -= len(chunk)
            yield chunk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()
            self._end()


def add_housekeeping(app: FastAPI, served: ServedExperiments) -> None:
    """Adds the routes to the app."""
    keeper, downloads = Housekeeping(served), threading.Semaphore(MOST_DOWNLOADS)

    @app.post("/api/experiments/{name}/notes", responses={200: {"model": Shown}})
    def notes(name: str, asked: Note) -> Response:
        """Saves the tags and notes of an experiment, in notes.json in its folder; a search never reads them."""
        return answer(keeper.save(name, tags=tuple(asked.tags), notes=asked.notes))

    @app.post("/api/experiments/{name}/archive", responses={200: {"model": Shown}})
    def archive(name: str, asked: Archive) -> Response:
        """Archives an experiment: the page's list hides it unless asked. `archived: false` shows it again."""
        return answer(keeper.save(name, archived=asked.archived))

    @app.post("/api/experiments/{name}/rename", responses={200: {"model": Shown}})
    def rename(name: str, asked: NewName) -> Response:
        """Renames an experiment and its folder, unless it is queued or running."""
        return answer(keeper.rename(name, asked.name))

    @app.delete("/api/experiments/{name}", responses={200: {"model": Deleted}})
    def delete(name: str) -> Response:
        """Deletes an experiment and its folder for ever, unless it is queued or running."""
        return answer(keeper.delete(name))

    @app.get("/api/experiments/{name}/contents", responses={200: {"model": Contents}})
    def contents(name: str) -> Response:
        """What the experiment's folder holds, and what a deletion would lose."""
        return answer(keeper.contents(name))

    @app.get("/api/experiments/{name}/best", responses={200: {"model": BestFiles}})
    def best_files(name: str) -> Response:
        """The files of the best model, which can be downloaded."""
        return answer(BestFiles(keeper.best_files(name)))

    @app.get("/api/experiments/{name}/best/{path:path}", response_class=StreamingResponse)
    def best(name: str, path: str) -> Response:
        """Returns a file of the best model, such as `model.pt` or `config.json`; follows no link."""
        if not downloads.acquire(blocking=False):
            raise Refused(503, f"{MOST_DOWNLOADS} files are being sent, which is the limit; try again")
        try:
            file, size, safe = keeper.best_file(name, path)
        except BaseException:
            downloads.release()
            raise
        return Download(file, size, safe, downloads.release)
