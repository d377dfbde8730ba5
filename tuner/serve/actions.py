"""Routes that change experiments, fill the page's forms or download best models. The guard checks the token."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, BinaryIO

from fastapi import Body, FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from tuner.errors import RequestError
from tuner.record import folder as folders
from tuner.record import notes as saved_notes
from tuner.record.notes import ForeignNotes, Notes, read_notes
from tuner.record.reading import NotYet
from tuner.record.storage.files import open_in
from tuner.record.storage.lock import driver_of
from tuner.serve.answers import Refused, answer, at_most
from tuner.serve.client import BUSY
from tuner.serve.jobs.requests import Resume, Start, described
from tuner.serve.reading.results_reader import NotThere
from tuner.serve.reading.summary import Summary
from tuner.serve.served import REFUSED_AGAIN, ServedExperiments
from tuner.spec.spaces import space_files

MOST_DOWNLOADS = 20  # files that are sent at once
CHUNK_BYTES = 256 << 10
MOST_CHECKS = 4  # requests that are checked at once; each check is a process that imports ray and torch
ONE = "/api/experiments/{name}"
_saving = threading.Lock()  # notes.json is read, changed and written by one request at a time


@dataclass(frozen=True)
class SpaceChoice:
    """A search space's name, the first line of its docstring, and the options' defaults, except computed defaults."""

    name: str
    about: str
    defaults: dict[str, Any]


@dataclass(frozen=True)
class SpaceChoices:
    """The search spaces of `search_spaces/`, then the own ones in the folder of --spaces."""

    spaces: list[SpaceChoice]


@dataclass(frozen=True)
class SignIn:
    """`signed_in`: whether this client may change experiments. `problem`: why no search can be started, or empty."""

    signed_in: bool
    problem: str


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Tags = Annotated[list[str], Field(max_length=saved_notes.MOST_TAGS)]
Text = Annotated[str, Field(max_length=saved_notes.MAX_NOTES_CHARS)]


class Note(_Body):
    """The tags and notes of an experiment; they replace the saved ones.

    `shown_tags` and `shown_notes` are those that the user saw before the change. If they are no longer the saved ones,
    somebody else has changed them, and nothing is saved.
    """

    tags: Tags = []
    notes: Text = ""
    shown_tags: Tags | None = None
    shown_notes: Text | None = None


class Archive(_Body):
    """Whether the page hides an experiment from its list."""

    archived: bool = True


@dataclass(frozen=True)
class BestFile:
    """A file of the best model: its path below the folder `best/`, and its size."""

    path: str
    size_bytes: int


@dataclass(frozen=True)
class BestFiles:
    """The files of the best model, at most 100."""

    files: tuple[BestFile, ...]


@dataclass(frozen=True)
class Deleted:
    """The name of a deleted experiment; `left` says which of its files could not be deleted, and why."""

    name: str
    left: str = ""


def add_actions(app: FastAPI, served: ServedExperiments) -> None:
    _add_searches(app, served)
    _add_changes(app, served)
    _add_downloads(app, served)


def _add_searches(app: FastAPI, served: ServedExperiments) -> None:
    checks = at_most(MOST_CHECKS, "requests are being checked")

    @app.get("/api/session", responses={200: {"model": SignIn}})
    def session(request: Request) -> Response:
        """Returns whether the client is signed in, and why the service cannot start searches, if it cannot."""
        return answer(SignIn(request.state.signed_in, served.problem))

    @app.get("/api/spaces", responses={200: {"model": SpaceChoices}})
    def spaces() -> Response:
        """Lists the search spaces that a search can use."""
        files = space_files() | served.spaces.files()
        return answer(SpaceChoices([SpaceChoice(name, *described(path)) for name, path in files.items()]))

    @app.post("/api/experiments", status_code=202, responses={202: {"model": Summary}}, dependencies=[checks])
    def start(asked: Start) -> Response:  # type: ignore[valid-type]  # made from the fields of Options
        """Queues a search; it starts when it is first in the queue and one of its trials fits the free resources."""
        return answer(served.one(served.searches.start(asked).name), 202)

    @app.post(f"{ONE}/stop", status_code=202, responses={202: {"model": Summary}})
    def stop(name: str) -> Response:
        """Stops a search as Ctrl-C does: it keeps its files and can be resumed. A queued search leaves the queue."""
        return answer(served.summary(served.view(name), served.searches.stop(name)), 202)

    @app.post(f"{ONE}/resume", status_code=202, responses={202: {"model": Summary}}, dependencies=[checks])
    def resume(name: str, asked: Resume = Body(default=Resume())) -> Response:  # type: ignore[valid-type]  # noqa: B008
        """Resumes a search that was interrupted, or extends one that has ended, as --resume does."""
        if driver := driver_of(served.reader.folder(name)):
            raise Refused(409, f"{name} is run by {driver}; stop it first")
        if served.view(name).summary.outcome == "refused":
            raise Refused(409, f"{name} was refused: {REFUSED_AGAIN}")
        served.searches.resume(name, asked)
        return answer(served.one(name), 202)


def _add_changes(app: FastAPI, served: ServedExperiments) -> None:
    def save(name: str, shown: dict[str, Any] | None = None, **changed: Any) -> Response:
        """Saves fields of an experiment's notes; a field of `shown` that is not None must have the saved value."""
        path = served.reader.folder(name)
        with _saving, folders.opened(path) as opened:
            try:
                notes = read_notes(path)
            except RequestError as error:
                if "notes" not in changed or isinstance(error, ForeignNotes):
                    raise
                notes = Notes()  # saving the notes replaces a damaged file
            if any(value not in (None, getattr(notes, field)) for field, value in (shown or {}).items()):
                raise Refused(409, f"somebody has saved other tags or notes of {name}; look at them, then save again")
            folders.write_in(opened, saved_notes.FILE, replace(notes, **changed).text())
        return answer(served.one(name))

    @app.post(f"{ONE}/notes", responses={200: {"model": Summary}})
    def notes(name: str, asked: Note) -> Response:
        """Saves the tags and notes of an experiment, in notes.json in its folder; a search never reads them."""
        tags = None if asked.shown_tags is None else tuple(asked.shown_tags)
        return save(name, {"tags": tags, "notes": asked.shown_notes}, tags=tuple(asked.tags), notes=asked.notes)

    @app.post(f"{ONE}/archive", responses={200: {"model": Summary}})
    def archive(name: str, asked: Archive) -> Response:
        """Archives an experiment: the page's list then hides it by default. `archived: false` shows it again."""
        return save(name, archived=asked.archived)

    @app.delete(ONE, responses={200: {"model": Deleted}})
    def delete(name: str) -> Response:
        """Deletes an experiment and its folder for ever, unless it is queued or running."""
        path = served.folder(name)
        if path is None:  # its search is queued, or ended before it made a folder
            if os.path.lexists(served.reader.root / name):
                raise NotThere("that experiment is a link, and links are not followed")
            with served.idle(name):
                served.searches.forget(name)
            return answer(Deleted(name))
        if busy := why_busy(name):
            raise Refused(409, busy)
        with served.idle(name), folders.opened(path) as opened, folders.without_driver(opened):
            aside = folders.set_aside(opened)
            if served.asked:
                served.asked.forget(name)
            return answer(Deleted(name, folders.remove(opened, aside)))

    def why_busy(name: str) -> str:
        """Says why an experiment cannot be deleted now: it is queued or running; empty if it is neither, or damaged."""
        try:
            summary = served.one(name)
        except (NotYet, NotThere):
            raise
        except RequestError:
            return ""
        killed = ", or end it with --resume and Ctrl-C if it was killed" if summary.state == "running" else ""
        return f"{name} is {summary.state}; stop it first{killed}" if summary.state in BUSY else ""


def _add_downloads(app: FastAPI, served: ServedExperiments) -> None:
    @app.get(f"{ONE}/best", responses={200: {"model": BestFiles}})
    def best_files(name: str) -> Response:
        """Lists the files of the best model, which can be downloaded."""
        path = served.folder(name)
        if path is None:
            return answer(BestFiles(()))
        with folders.opened(path) as opened:
            return answer(BestFiles(_best_files(opened)))

    @app.get(
        ONE + "/best/{path:path}",
        response_class=StreamingResponse,
        dependencies=[at_most(MOST_DOWNLOADS, "files are being sent")],
    )
    def best(name: str, path: str) -> Response:
        """Returns a file of the best model, such as `model.pt` or `config.json`; follows no link."""
        try:
            file = open_in(served.reader.folder(name), f"best/{path}")
        except (OSError, ValueError):
            raise NotThere(f"{name} has no file of that name in best/") from None
        size = os.fstat(file.fileno()).st_size
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{name}-{path}")[-150:].lstrip(".-") or "best"
        headers = {"Content-Length": str(size), "Content-Disposition": f'attachment; filename="{safe}"'}
        return StreamingResponse(chunks(file, size), headers=headers, media_type="application/octet-stream")


def _best_files(opened: folders.OpenFolder) -> tuple[BestFile, ...]:
    return tuple(BestFile(*each) for each in folders.files_in(opened, "best"))


def chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yields the first `size` bytes of an open file, and closes it."""
    with file:
        while size > 0 and (chunk := file.read(min(size, CHUNK_BYTES))):
            size -= len(chunk)
            yield chunk
