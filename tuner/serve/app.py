"""The service over a results folder; reads only. Every route is a call of what the other files know."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response

from tuner import tables
from tuner.errors import RequestError
from tuner.figures import all_figures
from tuner.serve.answers import answer
from tuner.serve.guard import HEADERS, Guard, is_loopback, refusal
from tuner.serve.insight import add_insight
from tuner.serve.page import add_page
from tuner.serve.store import NotThere, Store, Summary
from tuner.serve.stream import follow

MOST_STREAMS = 100  # followed at a time: each is a look at a file twice a second
MOST_ROWS = 10_000
Offset = Annotated[int, Query(ge=0, le=10**9, description="rows to leave out")]
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS, description="rows to send at most")]


@dataclasses.dataclass(frozen=True)
class Health:
    """The service answers, and reads this folder."""

    status: str
    results: str


@dataclasses.dataclass(frozen=True)
class Experiments:
    """All experiments of the results folder, the newest first."""

    results: str
    experiments: list[Summary]


@dataclasses.dataclass(frozen=True)
class Trials:
    """`total` trials there are, of which these rows were asked for."""

    total: int
    trials: list[tables.TrialRow]


@dataclasses.dataclass(frozen=True)
class Rungs:
    """The rungs, and the decisions taken there and elsewhere, close calls first; `total` decisions there are."""

    rungs: list[tables.RungRow]
    total: int
    decisions: list[tables.DecisionRow]


def create_app(results: Path, *, host: str = "127.0.0.1", token: str = "") -> FastAPI:
    """The service over a results folder.

    `host` is the address it is bound to: on loopback anyone on this machine may read; beyond it every request needs
    the token. `app.state.stopping` is asked by streams whether to end.

    Raises:
        RequestError: a host beyond loopback without a token.
    """
    if not is_loopback(host) and not token:
        raise RequestError(f"--host {host} is reached from elsewhere: set TUNER_TOKEN to a secret, or use 127.0.0.1")
    app = FastAPI(title="tuner", version="1", docs_url=None, redoc_url=None, openapi_url="/api/openapi.json")
    app.state.stopping = lambda: False
    app.state.streams = 0
    if not is_loopback(host):
        app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)
    app.add_middleware(Guard, token="" if is_loopback(host) else token)
    _errors_as_json(app)
    add_page(app)
    store = Store(results)
    _api(app, store)
    add_insight(app, store)
    _events(app, store)
    return app


def _api(app: FastAPI, store: Store) -> None:
    @app.get("/api/health", responses={200: {"model": Health}})
    def health() -> Response:
        """Whether the service answers."""
        return answer(Health("ok", str(store.root)))

    @app.get("/api/experiments", responses={200: {"model": Experiments}})
    def experiments() -> Response:
        """All experiments."""
        return answer(Experiments(str(store.root), store.summaries()))

    @app.get("/api/experiments/{name}", responses={200: {"model": Summary}})
    def experiment(name: str) -> Response:
        """One experiment in a line."""
        return answer(store.view(name).summary)

    @app.get("/api/experiments/{name}/trials", responses={200: {"model": Trials}})
    def trials(name: str, offset: Offset = 0, limit: Limit = MOST_ROWS) -> Response:
        """Its trials in the order in which they were suggested."""
        rows = tables.trial_rows(store.view(name).record)
        return answer(Trials(len(rows), rows[offset : offset + limit]))

    @app.get("/api/experiments/{name}/rungs", responses={200: {"model": Rungs}})
    def rungs(name: str, offset: Offset = 0, limit: Limit = MOST_ROWS) -> Response:
        """Its rungs, and its decisions with their margins, close calls first; offset and limit are of decisions."""
        record = store.view(name).record
        rows = tables.decision_rows(record)
        return answer(Rungs(tables.rung_rows(record), len(rows), rows[offset : offset + limit]))

    @app.get("/api/experiments/{name}/figures", responses={200: {"model": dict[str, dict[str, Any]]}})
    def figures(name: str) -> Response:
        """Figures of Plotly's schema by name, those that there is something to draw for."""
        return JSONResponse(all_figures(store.view(name).record))


def _events(app: FastAPI, store: Store) -> None:
    @app.get("/api/experiments/{name}/events", response_class=StreamingResponse)
    def events(
        name: str,
        after: Annotated[int, Query(ge=0, description="the number of the last line known")] = 0,
        last_event_id: Annotated[str, Header()] = "",
    ) -> Response:
        """Server-sent events: the journal's lines, as they are written; `id` is the line's number."""
        journal = store.journal(name)
        if app.state.streams >= MOST_STREAMS:
            return refusal(503, f"{MOST_STREAMS} streams are open already; close one")
        known = int(last_event_id) if last_event_id.isdecimal() else after
        return StreamingResponse(_counted(app, journal, known), media_type="text/event-stream")


async def _counted(app: FastAPI, journal: Path, after: int) -> AsyncIterator[bytes]:
    app.state.streams += 1
    try:
        async for frames in follow(journal, after, app.state.stopping):
            yield frames
    finally:
        app.state.streams -= 1


def _errors_as_json(app: FastAPI) -> None:
    def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        return refusal(422, f"{first['loc'][-1]}: {first['msg']}")

    def request(_: Request, error: Exception) -> Response:
        return refusal(404 if isinstance(error, NotThere) else 500, str(error))

    def unforeseen(_: Request, error: Exception) -> Response:
        # The outermost: this answer does not pass the guard.
        return JSONResponse({"error": f"the service failed ({type(error).__name__}); see its output"}, 500, HEADERS)

    for kind, handler in {HTTPException: http, RequestValidationError: invalid, RequestError: request}.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(Exception, unforeseen)
