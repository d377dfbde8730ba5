"""Creates the service for a results folder and adds the routes that read experiments."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, get_args

from fastapi import FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response

from tuner.errors import RequestError, blamed
from tuner.record.columns import Column, table_columns
from tuner.record.confirm import ConfirmedSetting
from tuner.record.format import JOURNAL
from tuner.record.reading import NotYet
from tuner.record.trial_row import TrialRow
from tuner.serve.access.guard import HEADERS, Guard, Keys, add_signin, is_loopback
from tuner.serve.actions import add_actions
from tuner.serve.analysis import add_analyses
from tuner.serve.answers import MOST_BYTES, BoundedResponse, answer, at_most, figures_text, later, refusal, wrong_field
from tuner.serve.comparison import add_compare
from tuner.serve.jobs.searches import WAITS_OR_RUNS, Searches
from tuner.serve.page import add_page
from tuner.serve.reading.results_reader import NotThere, ResultsReader
from tuner.serve.reading.stream import event_frames
from tuner.serve.reading.summary import Summary
from tuner.serve.served import ServedExperiments, Values
from tuner.views import tables
from tuner.views.audit_record import AuditedTrial
from tuner.views.costs import CostRow, cost_rows
from tuner.views.figures import curves
from tuner.views.figures import values as value_choices
from tuner.views.figures.catalogue import FIGURES, FigureName
from tuner.views.figures.parameters import parallel_of
from tuner.views.prediction import PredictionRow, prediction
from tuner.views.verdict import Verdict, verdict_of
from tuner.views.whatif import REPLAYED, Fate

MAX_ROWS = 10_000
MOST_STREAMS = 100  # event streams open at once; each checks a file 5 to 25 times a second
Offset = Annotated[int, Query(ge=0, le=10**9, description="first rows to skip")]
Line = Annotated[int, Field(ge=0, le=10**12, description="send only journal lines after this line number")]
Since = Annotated[int, Query(ge=0, le=10**12, description="only rows of trials that changed after this journal line")]
Limit = Annotated[int, Query(ge=1, le=MAX_ROWS, description="maximum rows to send")]
Wanted = Annotated[list[FigureName], Query(max_length=len(get_args(FigureName)), description="figures to send")]


class Refusal(BaseModel):
    """The body of an error response of the API; its text says what was requested, what is allowed and what to do."""

    error: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": text}
    for status, text in {
        400: "undecodable body", 401: "no valid token", 403: "another site sent the request", 404: "no such experiment",
        409: "not possible in the experiment's current state", 413: "the body is too long",
        422: "a wrong value, or damaged files", 429: "too many wrong tokens", 503: "too busy, or cannot start searches",
    }.items()
}  # fmt: skip


@dataclass(frozen=True)
class Health:
    """The service's status and the results folder that it reads."""

    status: str
    results: str


@dataclass(frozen=True)
class Experiments:
    """The requested experiments, out of `total`: first searches that have no folder yet, then the others, newest first.

    `left_out` counts requested experiments that did not fit into the response; request them with a larger offset.
    """

    results: str
    total: int
    experiments: list[Summary] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True)
class Trials:
    """The requested trials, out of `total`; `left_out` counts requested trials that did not fit into the response."""

    total: int
    trials: list[TrialRow] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True)
class Rungs:
    """The rungs, and the requested ones of `total` decisions; `left_out` counts rungs and decisions that do not fit."""

    rungs: list[tables.RungRow]
    total: int
    decisions: list[tables.DecisionRow] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True)
class Predictions:
    """How well the metric of prune_by predicts the searched one, by rung; `left_out` counts rungs that do not fit."""

    rungs: list[PredictionRow] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True)
class Front:
    """The Pareto front of a search with several metrics, its knee first; `left_out` counts points that do not fit."""

    points: list[tables.FrontRow] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True)
class Costs:
    """What the trials cost by the values of each parameter; `left_out` counts rows that do not fit."""

    rows: list[CostRow] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True)
class Changes:
    """Rows of trials that changed after line `since` of the journal, and the requested figures, in Plotly's schema.

    `best_metrics` are the numbers of the best report, except resource usage and speed.
    `front` and `confirmed` are the Pareto front and the settings that --confirm trained again, with all their rows.

    `since` is 0 if the request named no line or a line beyond the journal's end. Decisions are then sorted by margin,
    the smallest first; else they are in the order of the trials. `rungs` has the rungs that trials reached, and
    `num_trials` and `num_decisions` count all rows. `parameters` names the axes of the parallel coordinates. Figures
    can compare trials by any of `value_choices` of any of `metrics`; default: `value_default` of the first metric.
    `replayed` has the schedulers that a what-if knows, and the options that each uses. `left_out` counts rows that did
    not fit. `columns` describes the tables of the page, in each first answer.
    """

    summary: Summary
    since: int
    num_trials: int
    num_decisions: int
    parameters: list[str]
    rungs: list[tables.RungRow]
    verdict: Verdict
    value_choices: list[str]
    value_default: str
    metrics: list[str]
    replayed: dict[str, list[str]]
    best_metrics: dict[str, Any]
    front: list[tables.FrontRow] = field(default_factory=list)
    confirmed: list[ConfirmedSetting] = field(default_factory=list)
    trials: list[TrialRow] = field(default_factory=list)
    decisions: list[tables.DecisionRow] = field(default_factory=list)
    left_out: int = 0
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    columns: dict[str, tuple[Column, ...]] = field(default_factory=dict)


ROWS = TrialRow, tables.RungRow, tables.DecisionRow, tables.FrontRow, ConfirmedSetting, CostRow, Fate, AuditedTrial
TABLES = "trials", "rungs", "decisions", "front", "confirmed", "costs", "fates", "audited"
COLUMNS = {table: table_columns(row, "page") for table, row in zip(TABLES, ROWS, strict=True)}


def create_app(
    results: Path,
    *,
    host: str = "127.0.0.1",
    token: str = "",
    searches: Searches | None = None,
    problem: str = "this service only reads",
) -> FastAPI:
    """Creates the service for a results folder; event streams end once `app.state.stopping()` returns True.

    Args:
        host: the address that the service is bound to. On loopback, every user of this machine may read.
        token: empty = a random token that nobody learns, so programs cannot sign in.
        searches: starts the searches; None if no search can be started; `problem` then says why.
    """
    app = FastAPI(
        title="tuner", version="1", docs_url=None, redoc_url=None, openapi_url="/api/openapi.json", responses=REFUSALS
    )
    app.state.stopping = lambda: False
    app.state.keys = keys = Keys(token or secrets.token_urlsafe(32))
    if not is_loopback(host):
        app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)
    app.add_middleware(Guard, keys=keys, loopback=is_loopback(host))
    _errors_as_json(app)
    add_page(app)
    add_signin(app, keys)
    app.state.reader = reader = ResultsReader(results)
    served = ServedExperiments(reader, searches, "" if searches else problem)
    for add_routes in (_add_readings, add_analyses, add_actions, add_compare):
        add_routes(app, served)
    return app


def _add_readings(app: FastAPI, served: ServedExperiments) -> None:
    @app.get("/api/health", responses={200: {"model": Health}})
    async def health() -> Response:
        """Reports that the service answers, even while all its threads are busy."""
        return answer(Health("ok", str(served.reader.root)))

    @app.get("/api/experiments", responses={200: {"model": Experiments}})
    def experiments(offset: Offset = 0, limit: Limit = MAX_ROWS) -> Response:
        """Lists the experiments: first searches that have no folder yet, then the others, newest first."""
        total, rows = served.rows(offset, limit)
        return answer(Experiments(str(served.reader.root), total), experiments=rows)

    @app.get("/api/experiments/{name}", responses={200: {"model": Summary}})
    def experiment(name: str) -> Response:
        """Returns the summary of one experiment."""
        return answer(served.one(name))

    @app.get("/api/experiments/{name}/trials", responses={200: {"model": Trials}})
    def trials(name: str, offset: Offset = 0, limit: Limit = MAX_ROWS, since: Since = 0) -> Response:
        """Lists the experiment's trials in the order in which they were suggested."""
        record = served.view(name).record
        asked = tables.changed_since(record, since)[offset : offset + limit]
        return answer(Trials(len(record.trials)), trials=tables.trial_rows(record, asked))

    @app.get("/api/experiments/{name}/rungs", responses={200: {"model": Rungs}})
    def rungs(name: str, offset: Offset = 0, limit: Limit = MAX_ROWS, since: Since = 0) -> Response:
        """Lists rungs, and decisions with their margins (|value - cutoff|), the smallest margin first.

        offset, limit and since apply to the decisions. With since, decisions are in the order of the trials.
        """
        record = served.view(name).record
        there, calls = record.stats.rungs, record.stats.ranked_decisions
        begun = Rungs(tables.rung_rows(record, MAX_ROWS), len(calls), left_out=max(0, len(there) - MAX_ROWS))
        return answer(begun, decisions=tables.decision_rows(record, offset, limit, since))

    @app.get("/api/experiments/{name}/prediction", responses={200: {"model": Predictions}})
    def predictions(name: str) -> Response:
        """Says at each rung how well the metric of prune_by predicts the searched one; empty without prune_by."""
        return answer(Predictions(), rungs=prediction(served.view(name).record))

    @app.get("/api/experiments/{name}/front", responses={200: {"model": Front}})
    def front(name: str) -> Response:
        """Lists the points of the Pareto front, as `load_best` numbers them; empty with one metric."""
        return answer(Front(), points=tables.front_rows(served.view(name).record))

    @app.get("/api/experiments/{name}/costs", responses={200: {"model": Costs}})
    def costs(name: str) -> Response:
        """Says what the trials cost by the values of each parameter, in time, epochs, CPU-hours and GPU-hours."""
        return answer(Costs(), rows=cost_rows(served.view(name).record))

    @app.get("/api/experiments/{name}/figures", responses={200: {"model": dict[str, dict[str, Any]]}})
    def figures(name: str) -> Response:
        """Returns figures by name, in Plotly's schema; leaves out figures without data."""
        view = served.view(name)
        return BoundedResponse(figures_text({each: view.figure(each) for each in FIGURES}, MOST_BYTES))

    @app.get("/api/experiments/{name}/changes", responses={200: {"model": Changes}})
    def changes(
        name: str,
        since: Since = 0,
        limit: Limit = MAX_ROWS,
        figures: Wanted = [],  # noqa: B006
        values: Values = "",
        axis: Annotated[str, Query(pattern=curves.PATTERN, description=curves.ABOUT)] = "",
    ) -> Response:
        """Returns what a live view needs: the summary, the rows that changed after line `since`, and figures.

        limit applies to trials and to decisions separately.
        """
        view, search = served.view(name), served.search(name)
        record = view.record
        since = since if since <= view.summary.lines else 0
        with blamed(name):
            verdict = verdict_of(record)
            if search and search.phase in WAITS_OR_RUNS:
                verdict = replace(verdict, steps=[])  # the service itself continues this search
            parameters = [axis.name for axis in parallel_of(record).axes]
        rungs, calls = record.stats.rungs, record.stats.ranked_decisions
        begun = Changes(
            summary=served.summary(view, search),
            since=since,
            num_trials=len(record.trials),
            num_decisions=len(calls),
            parameters=parameters,
            rungs=tables.rung_rows(record, MAX_ROWS),
            verdict=verdict,
            value_choices=value_choices.offered(record),
            value_default=value_choices.default(record),
            metrics=value_choices.metrics_of(record),
            replayed=REPLAYED,
            best_metrics=tables.best_metrics(record),
            left_out=max(0, len(rungs) - MAX_ROWS),
            columns={} if since else COLUMNS,
        )
        changed = tables.changed_since(record, since)[:limit]
        return answer(
            begun,
            figures={each: view.figure(each, axis if each == "curves" else values) for each in figures},
            front=tables.front_rows(record),
            confirmed=record.confirmation.settings,
            trials=tables.trial_rows(record, changed),
            decisions=tables.decision_rows(record, limit=limit, since=since),
        )

    streams = at_most(MOST_STREAMS, "event streams are open")

    @app.get("/api/experiments/{name}/events", response_class=StreamingResponse, dependencies=[streams])
    def events(
        name: str, after: Annotated[Line, Query()] = 0, last_event_id: Annotated[Line, Header()] = 0
    ) -> Response:
        """Sends the journal's lines as server-sent events as soon as they are written; `id` is the line's number."""
        journal = (served.folder(name) or served.reader.root / name) / JOURNAL
        frames = event_frames(journal, last_event_id or after, app.state.stopping)
        return EventSourceResponse(frames, headers={"X-Accel-Buffering": "no"})  # for nginx: do not buffer events


def _errors_as_json(app: FastAPI) -> None:
    def failed(_: Request, error: Exception) -> Response:
        if isinstance(error, RequestValidationError):
            return refusal(422, wrong_field(error.errors()[0]))
        if isinstance(error, HTTPException):
            return refusal(error.status_code, error.detail, error.headers)
        if isinstance(error, NotYet):
            return later(str(error))
        if isinstance(error, RequestError):  # a wrong request, or a damaged folder
            return refusal(404 if isinstance(error, NotThere) else getattr(error, "status", 422), str(error))
        # The response to a fault of the service itself does not pass the guard, which sets these headers otherwise.
        return refusal(500, f"the service failed ({type(error).__name__}); see its output", HEADERS)

    for kind in (HTTPException, RequestValidationError, RequestError, Exception):
        app.add_exception_handler(kind, failed)
