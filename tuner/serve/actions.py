"""Routes to list spaces, to start, stop and resume a search, and to sign in and out. The guard checks the token."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fastapi import Body, FastAPI, Request
from pydantic.dataclasses import dataclass as pydantic_dataclass
from starlette.responses import Response

from tuner.errors import RequestError
from tuner.record.results import ExperimentRecord
from tuner.record.storage.lock import driver_of
from tuner.serve.access.guard import signin_page, welcome
from tuner.serve.access.keys import Keys, Wait, client_of
from tuner.serve.answers import Refused, answer
from tuner.serve.jobs.options import Resume, Start, defaults_of, resume_arguments
from tuner.serve.jobs.queue import ACTIVE, Search
from tuner.serve.jobs.searches import Searches
from tuner.serve.reading.experiment_reader import View
from tuner.serve.reading.results_reader import NotThere, ResultsReader
from tuner.serve.reading.summary import UNRECORDED, Summary, options_summary
from tuner.spec.experiment import fixed_epochs
from tuner.spec.spaces import list_spaces


# Each route lists this model for ten status codes. pydantic builds the schema of a pydantic dataclass once, but that of
# a standard dataclass at every use.
@pydantic_dataclass(frozen=True)
class Refusal:
    """The body of an error response of the API; its text says what was requested, what is allowed and what to do."""

    error: str


@dataclasses.dataclass(frozen=True)
class SpaceChoice:
    """A search space that a search can use, with the first line of its docstring.

    `defaults` has the value of each option that a request leaves out; an option that the space computes is missing.
    """

    name: str
    about: str
    defaults: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class SpaceChoices:
    """All search spaces of `search_spaces/`."""

    spaces: list[SpaceChoice]


@dataclasses.dataclass(frozen=True)
class SignIn:
    """Whether this client is signed in: it may then change experiments, and start and stop searches.

    `problem` says why the service cannot start searches; it is empty if it can.
    """

    signed_in: bool
    problem: str


@dataclasses.dataclass(frozen=True)
class Shown(Summary):
    """An experiment's summary, with what the service knows about its job.

    Its `state` may also be queued, starting or stopping. `message` says why the search waits or failed.
    `actions` lists the allowed requests: stop, resume. `waits_for` says what a queued or starting search waits for, and
    `waits_since` since when, in unix seconds. `not_resumed` says why this service cannot resume or extend the search,
    `same_epochs` why its epochs per trial cannot change.
    """

    message: str = ""
    actions: list[str] = dataclasses.field(default_factory=list)
    waits_for: str = ""
    waits_since: float | None = None
    not_resumed: str = ""
    same_epochs: str = ""


REFUSED_AGAIN = "the search would be refused again; start a new one"
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": text}
    for status, text in {
        400: "no JSON", 401: "no token", 403: "sent by another site", 404: "no such experiment", 408: "too slow",
        409: "not now", 413: "too long", 422: "wrong, or its files are damaged", 429: "too many wrong tokens",
        503: "too busy, or searches cannot be started here",
    }.items()
}  # fmt: skip


class ServedExperiments:
    """Combines, for each experiment, its files with the searches that this service was asked to run.

    Args:
        searches: starts the searches; None if none can be started.
        problem: why no search can be started, if `searches` is None.
    """

    def __init__(self, reader: ResultsReader, searches: Searches | None, problem: str = "") -> None:
        self.reader, self._searches, self.problem = reader, searches, problem

    @property
    def asked(self) -> Searches | None:
        """The searches that this service was asked to run; None if it cannot start any."""
        return self._searches

    @property
    def searches(self) -> Searches:
        """The object that starts searches; raises Refused if the service cannot start any."""
        if self._searches is None:
            raise Refused(503, self.problem)
        return self._searches

    def rows(self, offset: int, limit: int) -> tuple[int, Iterable[Shown]]:
        """Returns the number of experiments, and lazily the rows of `limit` of them from `offset` on.

        Experiments that wait to be started come first, then the others from newest to oldest.
        """
        asked = {search.name: search for search in (self._searches.all() if self._searches else [])}
        there = self.reader.summaries()
        names = {summary.name for summary in there}
        waiting = [_pending(search) for search in reversed(asked.values()) if search.name not in names]
        rows = islice(chain(waiting, there), offset, offset + limit)
        return len(waiting) + len(there), (shown(row, asked.get(row.name)) for row in rows)

    def view(self, name: str, until: float | None = None) -> View:
        """Returns an experiment's record and summary; the record is empty if a requested search has no folder yet.

        Raises:
            NotThere: there is no experiment of that name. Other errors are those of `ResultsReader.view`.
        """
        try:
            return self.reader.view(name, until)
        except NotThere:
            search = self._searches.get(name) if self._searches else None
            if search is None:
                raise
            summary = _pending(search)
            return View(ExperimentRecord(search.experiment, {}, (), summary.state), summary)

    def one(self, name: str) -> Shown:
        """Returns an experiment's summary.

        Raises:
            NotThere: there is no experiment of that name.
        """
        return self.shown(self.view(name).summary)

    def shown(self, summary: Summary) -> Shown:
        """Returns an experiment's summary with the state of its job."""
        return shown(summary, self._searches.get(summary.name) if self._searches else None)

    def journal(self, name: str) -> Path:
        """Returns the path of an experiment's journal; the file may not exist yet.

        Raises:
            NotThere: there is no experiment of that name.
        """
        try:
            return self.reader.journal(name)
        except NotThere:
            self.view(name)
            return self.reader.root / name / "journal.jsonl"

    @contextmanager
    def idle(self, *names: str) -> Iterator[None]:
        """Reserves the names while the `with` block runs, so that this service starts no search of these names.

        Raises:
            Refused: a search of one of these names is queued or running.
        """
        with ExitStack() as stack:
            for name in names if self._searches else ():
                stack.enter_context(self.searches.reserved(name))
            yield

    def resume(self, name: str, asked: Any) -> None:
        """Queues a search to be resumed; raises Refused while a process runs it, and if the search was refused."""
        if driver := driver_of(self.reader.journal(name).parent):
            raise Refused(409, f"{name} is run by {driver}; stop it first")
        if self.view(name).summary.outcome == "refused":
            raise Refused(409, f"{name} was refused: {REFUSED_AGAIN}")
        self.searches.resume(name, asked)


def shown(summary: Summary, search: Search | None) -> Shown:
    """Returns the summary from the experiment's files, with its state corrected by the state of its job."""
    state, message, waits_for, waits_since = summary.state, "", "", None
    if search and search.phase == "queued":
        state, message = "queued", search.message or "waiting for free resources"
        waits_for, waits_since = message, search.since
    elif search and search.phase == "stopping":
        state = "stopping"
    elif search and search.phase == "submitted":
        # The search has started once its journal was written after the request. It stays "running" until its job
        # ends, because the driver prints the answer after the end of the journal.
        state = "running" if (summary.updated or 0) > search.since else "starting"
        if state == "starting":
            waits_for, waits_since = search.message, search.submitted or search.since
    elif search and search.phase in ("stopped", "failed"):
        # The job ended without writing an end to its journal, so the state in the journal is out of date.
        if state in ("running", "queued") or summary.killed:
            state = "interrupted" if search.phase == "stopped" else "failed"
        message = search.message if search.phase == "failed" else ""
    busy = bool(search and search.phase in ("queued", *ACTIVE))
    there = summary.started is not None or summary.lines > 0
    may_resume = there and not busy and summary.outcome != "refused"
    actions = ["stop"] if busy and state != "stopping" else ["resume"] if may_resume else []
    fields = {field.name: getattr(summary, field.name) for field in dataclasses.fields(Summary)}
    return Shown(
        **{**fields, "state": state},
        message=message,
        actions=actions,
        waits_for=waits_for,
        waits_since=waits_since,
        not_resumed=_not_resumed(summary) if there else "",
        same_epochs=fixed_epochs(summary.scheduler, summary.max_epochs),
    )


def _not_resumed(summary: Summary) -> str:
    """Returns why the service does not resume a search; empty if it does."""
    if summary.space == UNRECORDED["space"]:
        return "plain Ray Tune wrote this folder, so tuner has no journal to resume it from"
    if summary.outcome == "refused":
        return REFUSED_AGAIN
    try:
        resume_arguments(summary.name, summary.space, Resume())
    except RequestError as error:
        return str(error)
    return ""


def _pending(search: Search) -> Summary:
    """Returns the summary of a search that has no folder yet."""
    return dataclasses.replace(options_summary(search.experiment), name=search.name, state="queued")


def add_control(app: FastAPI, served: ServedExperiments, keys: Keys) -> None:
    """Adds to `app` the routes that list spaces, start, stop and resume searches, and sign in and out."""

    @app.get("/api/session", responses={200: {"model": SignIn}})
    def session(request: Request) -> Response:
        """Returns whether the client is signed in, and why the service cannot start searches, if it cannot."""
        return answer(SignIn(request.state.signed_in, served.problem))

    @app.get("/api/spaces", responses={200: {"model": SpaceChoices}})
    def spaces() -> Response:
        """Lists the search spaces that a search can use."""
        return answer(SpaceChoices([SpaceChoice(*pair, defaults_of(pair[0])) for pair in list_spaces().items()]))

    @app.post("/api/experiments", status_code=202, responses={202: {"model": Shown}})
    def start(asked: Start) -> Response:  # type: ignore[valid-type]  # made from Experiment's fields
        """Starts a search: it is queued, and runs as soon as it is its turn and a trial fits the free resources."""
        return answer(served.one(served.searches.start(asked).name), 202)

    @app.post("/api/experiments/{name}/stop", status_code=202, responses={202: {"model": Shown}})
    def stop(name: str) -> Response:
        """Stops a search as Ctrl-C does: it keeps its files and can be resumed. A queued search leaves the queue."""
        view = served.view(name)
        search = served.searches.stop(name)
        return answer(shown(view.summary, search), 202)

    @app.post("/api/experiments/{name}/resume", status_code=202, responses={202: {"model": Shown}})
    def resume(name: str, asked: Resume = Body(default=Resume())) -> Response:  # type: ignore[valid-type]  # noqa: B008
        """Resumes a search that was interrupted, or extends one that has ended, as --resume does."""
        served.resume(name, asked)
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
