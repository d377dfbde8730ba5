"""The route that the page requests after new events: one response has the changed rows and the requested figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, get_args

from fastapi import FastAPI, Query
from starlette.responses import Response

from tuner.errors import blamed
from tuner.serve.actions import ServedExperiments, Shown
from tuner.serve.answers import MOST_BYTES, BoundedResponse, figures_text, text_of
from tuner.views import tables
from tuner.views.figures import values as value_choices
from tuner.views.figures.catalogue import FigureName
from tuner.views.figures.parallel import parallel_of
from tuner.views.verdict import Verdict, verdict_of

MOST_ROWS = 10_000
Since = Annotated[int, Query(ge=0, le=10**12, description="only trials that changed after this line of the journal")]
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS, description="rows to send at most")]
Values = Annotated[str, Query(pattern=value_choices.PATTERN, description=value_choices.ABOUT)]
Wanted = Annotated[list[FigureName], Query(max_length=len(get_args(FigureName)), description="figures to send")]


@dataclass(frozen=True)
class Rows:
    """The rows that changed after line `since` of the journal, all from the same state of the experiment.

    `verdict` says in plain words what the search has found out.

    `since` is 0 if the response does not depend on it: the request named no line, or one beyond the journal's end.
    `num_trials` and `num_decisions` count all of the experiment. `parameters` are the axes of the parallel coordinates.
    `value_choices` are what figures can compare trials by, and `value_default` is the one they use without a choice.
    `rungs` are all rungs. With `since` 0, decisions start with the smallest margin, else they are in the order of the
    trials. `left_out` counts rows that did not fit into the response.
    """

    summary: Shown
    since: int
    num_trials: int
    num_decisions: int
    parameters: list[str]
    rungs: list[tables.RungRow]
    verdict: Verdict
    value_choices: list[str]
    value_default: str
    trials: list[tables.TrialRow] = field(default_factory=list)
    decisions: list[tables.DecisionRow] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class Changes(Rows):
    """The experiment's rows that changed after line `since` of the journal, and the requested figures.

    The figures have Plotly's schema; figures without data are left out.
    """

    figures: dict[str, dict[str, Any]]


def add_changes(app: FastAPI, served: ServedExperiments) -> None:
    """Adds the route for changed rows to the app."""

    @app.get("/api/experiments/{name}/changes", responses={200: {"model": Changes}})
    def changes(
        name: str,
        since: Since = 0,
        limit: Limit = MOST_ROWS,
        figures: Wanted = [],  # noqa: B006
        values: Values = "",
    ) -> Response:
        """Returns what a live view needs: the summary, the rows that changed after line `since`, and figures.

        limit applies to trials and to decisions separately.
        """
        view = served.view(name)
        record = view.record
        since = since if since <= view.summary.lines else 0
        with blamed(name):
            verdict = verdict_of(record)
            parameters = [axis.name for axis in parallel_of(record).axes]
        rungs, calls = record.stats.rungs, record.stats.ranked_decisions
        rows = Rows(
            summary=served.shown(view.summary),
            since=since,
            num_trials=len(record.trials),
            num_decisions=len(calls),
            parameters=parameters,
            rungs=tables.rung_rows(record, MOST_ROWS),
            verdict=verdict,
            value_choices=value_choices.offered(record),
            value_default=value_choices.default(record),
            left_out=max(0, len(rungs) - MOST_ROWS),
        )
        changed = tables.changed_since(record, since)[:limit]
        text = text_of(
            rows,
            trials=tables.trial_rows(record, changed),
            decisions=tables.decision_rows(record, limit=limit, since=since),
        ).encode()
        drawn = figures_text({each: view.figure(each, values) for each in figures}, MOST_BYTES - len(text))
        return BoundedResponse(text[:-1] + b', "figures": ' + drawn + b"}")
