"""Routes that change something, and those that their forms need. The guard checks the token.

Searches are started, stopped and resumed; experiments are tagged, archived, renamed, deleted and downloaded. A folder
is changed through file descriptors, so that no link is followed (`tuner.record.folder`).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, BinaryIO
from urllib.parse import parse_qs

from fastapi import Body, FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from tuner.errors import RequestError
from tuner.record import folder as folders
from tuner.record import notes as saved_notes
from tuner.record.notes import Notes, read_notes
from tuner.record.reading import NotYet
from tuner.record.saved_experiment import load_experiment
from tuner.record.storage.files import open_in
from tuner.record.storage.lock import driver_of
from tuner.serve.access.guard import signin_page, welcome
from tuner.serve.access.keys import Keys, Wait, client_of
from tuner.serve.answers import Refused, answer, at_most
from tuner.serve.client import BUSY
from tuner.serve.jobs.options import Resume, Start, defaults_of
from tuner.serve.reading.results_reader import NotThere
from tuner.serve.reading.summary import Summary
from tuner.serve.served import REFUSED_AGAIN, ServedExperiments, with_job
from tuner.spec.experiment import LATEST, NAMES, is_uri
from tuner.spec.spaces import list_spaces

MOST_DOWNLOADS = 20  # that are sent at once
CHUNK_BYTES = 256 << 10
MOST_COUNTED = 4  # folders whose files are counted at once, because that may take seconds
_saving = threading.Lock()  # notes.json is read, changed and written by one request at a time


@dataclass(frozen=True)
class SpaceChoice:
    """A search space that a search can use, with the first line of its docstring.

    `defaults` has the value of each option that a request leaves out; an option that the space computes is missing.
    """

    name: str
    about: str
    defaults: dict[str, Any]


@dataclass(frozen=True)
class SpaceChoices:
    """All search spaces of `search_spaces/`."""

    spaces: list[SpaceChoice]


@dataclass(frozen=True)
class SignIn:
    """Whether this client is signed in: it may then change experiments, and start and stop searches.

    `problem` says why the service cannot start searches; it is empty if it can.
    """

    signed_in: bool
    problem: str


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

    trials: int = 0
    epochs: int = 0
    files: int = 0
    size_bytes: int = 0
    is_whole: bool = True
    checkpoints: int = 0
    best: tuple[BestFile, ...] = ()
    kept: str = ""


@dataclass(frozen=True)
class Deleted:
    """The name of a deleted experiment; `left` says which of its files could not be deleted, and why."""

    name: str
    left: str


def add_control(app: FastAPI, served: ServedExperiments, keys: Keys) -> None:
    """Adds the routes that list spaces, start, stop and resume searches, and sign in and out."""

    @app.get("/api/session", responses={200: {"model": SignIn}})
    def session(request: Request) -> Response:
        """Returns whether the client is signed in, and why the service cannot start searches, if it cannot."""
        return answer(SignIn(request.state.signed_in, served.problem))

    @app.get("/api/spaces", responses={200: {"model": SpaceChoices}})
    def spaces() -> Response:
        """Lists the search spaces that a search can use."""
        return answer(SpaceChoices([SpaceChoice(*pair, defaults_of(pair[0])) for pair in list_spaces().items()]))

    @app.post("/api/experiments", status_code=202, responses={202: {"model": Summary}})
    def start(asked: Start) -> Response:  # type: ignore[valid-type]  # made from Experiment's fields
        """Starts a search: it is queued, and runs as soon as it is its turn and a trial fits the free resources."""
        return answer(served.one(served.searches.start(asked).name), 202)

    @app.post("/api/experiments/{name}/stop", status_code=202, responses={202: {"model": Summary}})
    def stop(name: str) -> Response:
        """Stops a search as Ctrl-C does: it keeps its files and can be resumed. A queued search leaves the queue."""
        view = served.view(name)
        return answer(with_job(view.summary, served.searches.stop(name)), 202)

    @app.post("/api/experiments/{name}/resume", status_code=202, responses={202: {"model": Summary}})
    def resume(name: str, asked: Resume = Body(default=Resume())) -> Response:  # type: ignore[valid-type]  # noqa: B008
        """Resumes a search that was interrupted, or extends one that has ended, as --resume does."""
        if driver := driver_of(served.reader.folder(name)):
            raise Refused(409, f"{name} is run by {driver}; stop it first")
        if served.view(name).summary.outcome == "refused":
            raise Refused(409, f"{name} was refused: {REFUSED_AGAIN}")
        served.searches.resume(name, asked)
        return answer(served.one(name), 202)

    @app.post("/signin", include_in_schema=False)
    async def signin(request: Request) -> Response:
        """Checks the token that the sign-in page's form sends, and opens a session."""
        token = parse_qs((await request.body()).decode("utf-8", "replace")).get("token", [""])[0]
        try:
            if not keys.is_token(token.encode("utf-8", "replace"), client_of(request)):
                return signin_page("That is not the token.", 401)
        except Wait as wait:
            return signin_page(f"{wait}.".capitalize(), 429, {"Retry-After": str(wait.seconds)})
        return welcome(keys, secure=request.url.scheme == "https")

    @app.post("/signout", include_in_schema=False)
    def signout(request: Request) -> Response:
        """Ends the browser's session; its cookie is refused from then on."""
        keys.end_session(request.state.session)
        gone = Response(status_code=204)
        gone.delete_cookie(keys.cookie, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return gone


def add_housekeeping(app: FastAPI, served: ServedExperiments) -> None:
    """Adds the routes that keep the list of experiments in order."""

    def save(name: str, **changed: Any) -> Response:
        path = served.reader.folder(name)
        with _saving, folders.opened(path) as opened:
            try:
                notes = read_notes(path)
            except RequestError:
                if "notes" not in changed:
                    raise
                notes = Notes()  # saving the notes replaces a damaged file
            folders.write_in(opened, saved_notes.FILE, replace(notes, **changed).text())
        return answer(served.one(name))

    def summary_of(name: str) -> Summary | None:
        """Returns an experiment's summary; None if its files are damaged: it can be deleted too."""
        try:
            return served.one(name)
        except (NotYet, NotThere):
            raise
        except RequestError:
            return None

    @app.post("/api/experiments/{name}/notes", responses={200: {"model": Summary}})
    def notes(name: str, asked: Note) -> Response:
        """Saves the tags and notes of an experiment, in notes.json in its folder; a search never reads them."""
        return save(name, tags=tuple(asked.tags), notes=asked.notes)

    @app.post("/api/experiments/{name}/archive", responses={200: {"model": Summary}})
    def archive(name: str, asked: Archive) -> Response:
        """Archives an experiment: the page's list hides it unless asked. `archived: false` shows it again."""
        return save(name, archived=asked.archived)

    @app.post("/api/experiments/{name}/rename", responses={200: {"model": Summary}})
    def rename(name: str, asked: NewName) -> Response:
        """Renames an experiment and its folder, unless it is queued or running."""
        new, (pattern, allowed) = asked.name, NAMES["name"]
        if not re.fullmatch(pattern, new, re.ASCII) or new == LATEST:
            raise RequestError(f"name {new!r}: must be {allowed}, and not {LATEST}")
        path, summary = served.reader.folder(name), summary_of(name)
        if new == name:
            return answer(served.one(name))
        try:
            results = load_experiment(path)[0].results
        except RequestError:
            results = ""  # damaged
        if is_uri(results):
            raise Refused(409, f"{name} is a working copy of an object store, where it would keep its name")
        if busy := _busy(summary):
            raise Refused(409, busy)
        if served.search(new):
            raise Refused(409, f"{new} already exists; give another name")
        with served.idle(name, new), folders.opened(path) as opened, folders.without_driver(opened):
            folders.rename(opened, new)
            if served.asked:
                served.asked.rename(name, new)
        return answer(served.one(new))

    @app.delete("/api/experiments/{name}", responses={200: {"model": Deleted}})
    def delete(name: str) -> Response:
        """Deletes an experiment and its folder for ever, unless it is queued or running."""
        path = served.folder(name)
        if path is None:  # its search was asked for, and has no folder
            if os.path.lexists(served.reader.root / name):
                raise NotThere("that experiment is a link, and links are not followed")
            with served.idle(name):
                served.searches.forget(name)
            return answer(Deleted(name, ""))
        if busy := _busy(summary_of(name)):
            raise Refused(409, busy)
        with served.idle(name), folders.opened(path) as opened, folders.without_driver(opened):
            aside = folders.set_aside(opened)
            if served.asked:
                served.asked.forget(name)
            return answer(Deleted(name, folders.remove(opened, aside)))

    counting = at_most(MOST_COUNTED, "folders are being counted")

    @app.get("/api/experiments/{name}/contents", responses={200: {"model": Contents}}, dependencies=[counting])
    def contents(name: str) -> Response:
        """What the experiment's folder holds, and what a deletion would lose."""
        path = served.folder(name)
        if path is None:
            return answer(Contents())
        summary = summary_of(name)
        try:
            driver = driver_of(path)
            kept = _busy(summary) or (f"{name} is run by {driver}; stop it first" if driver else "")
        except RequestError as error:
            kept = str(error)
        with folders.opened(path) as opened:
            size = folders.size_of(opened)
            best = tuple(BestFile(*each) for each in folders.files_in(opened, "best"))
        trials, epochs = (sum(summary.counts.values()), summary.epochs) if summary else (0, 0)
        return answer(Contents(trials, epochs, **vars(size), best=best, kept=kept))

    @app.get("/api/experiments/{name}/best", responses={200: {"model": BestFiles}})
    def best_files(name: str) -> Response:
        """The files of the best model, which can be downloaded."""
        path = served.folder(name)
        if path is None:
            return answer(BestFiles([]))
        with folders.opened(path) as opened:
            return answer(BestFiles([BestFile(*each) for each in folders.files_in(opened, "best")]))

    downloads = at_most(MOST_DOWNLOADS, "files are being sent")

    @app.get("/api/experiments/{name}/best/{path:path}", response_class=StreamingResponse, dependencies=[downloads])
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


def _busy(summary: Summary | None) -> str:
    """Returns why an experiment cannot be changed if its search waits or runs, maybe on another host; else empty."""
    if summary is None or summary.state not in BUSY:
        return ""
    killed = ", or end it with --resume and Ctrl-C if it was killed" if summary.state == "running" else ""
    return f"{summary.name} is {summary.state}; stop it first{killed}"


def chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yields the first `size` bytes of an open file, and closes it."""
    with file:
        while size > 0 and (chunk := file.read(min(size, CHUNK_BYTES))):
            size -= len(chunk)
            yield chunk
