"""Read-only routes that analyse one experiment: what-if (a replay), one trial, contour, importance, and the audit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Path, Query, Request
from starlette.responses import Response

from tuner.errors import blamed
from tuner.record.results import ExperimentRecord
from tuner.serve.analysis.analyses import ANALYSES, FigureAnswer, WhatIfAnswer
from tuner.serve.analysis.worker import AnalysisWorker
from tuner.serve.answers import answer
from tuner.serve.reading.experiment_reader import MOST_JOURNAL_BYTES
from tuner.serve.reading.results_reader import NotThere
from tuner.serve.served import ServedExperiments, Values
from tuner.views.audit_record import AuditResult, result_of
from tuner.views.commands import audit_command
from tuner.views.one_trial import OneTrial, one_trial
from tuner.views.whatif import MOST_BRACKETS, Replayed

Parameter = Annotated[str, Query(max_length=500, description="a parameter that differs between trials")]


@dataclass(frozen=True)
class AuditAnswer:
    """The audit's `result` so far (None before an audit), and the shell `command` to begin or continue it, if any."""

    result: AuditResult | None
    command: str


def add_insight(app: FastAPI, served: ServedExperiments) -> None:
    """Adds the analysis routes to the app."""
    worker = AnalysisWorker(MOST_JOURNAL_BYTES)

    async def worked_out(request: Request, name: str, analysis: str, **choices: Any) -> Response:
        """Computes an expensive response in the child process, or here if a queued search has no folder yet."""
        folder = await asyncio.to_thread(served.folder, name)
        if folder is None:
            return await asyncio.to_thread(asked, served, name, lambda record: ANALYSES[analysis](record, **choices))
        return await worker.ask(request, folder, analysis, choices, lambda: app.state.stopping())

    @app.get("/api/experiments/{name}/what-if", responses={200: {"model": WhatIfAnswer}})
    async def what_if_route(
        request: Request,
        name: str,
        scheduler: Annotated[Replayed | Literal[""], Query(description="empty = the search's own")] = "",
        grace_period: Annotated[int, Query(ge=1, le=10**6, description="epochs before a trial may be stopped")] = 1,
        reduction_factor: Annotated[
            float, Query(gt=1, le=1000, description="1 in N trials continues at each rung")
        ] = 2,
        brackets: Annotated[int, Query(ge=1, le=MOST_BRACKETS, description="brackets of asha, asha-promotion")] = 1,
    ) -> Response:
        """Replays the recorded curves under other rules: where trials stop, epochs saved, and if the winner is lost."""
        choices = {"scheduler": scheduler, "grace_period": grace_period, "reduction_factor": reduction_factor}
        return await worked_out(request, name, "what-if", **choices, brackets=brackets)

    @app.get("/api/experiments/{name}/contour", responses={200: {"model": FigureAnswer}})
    async def contour(request: Request, name: str, x: Parameter, y: Parameter, values: Values = "") -> Response:
        """Draws the metric over two parameters, smoothed between the trials."""
        return await worked_out(request, name, "contour", x=x, y=y, values=values)

    @app.get("/api/experiments/{name}/importance", responses={200: {"model": FigureAnswer}})
    async def importance(request: Request, name: str, values: Values = "") -> Response:
        """Draws how much each parameter matters, with its uncertainty."""
        return await worked_out(request, name, "importance", values=values)

    @app.get("/api/experiments/{name}/trials/{trial}", responses={200: {"model": OneTrial}})
    def trial_route(name: str, trial: Annotated[str, Path(max_length=200)]) -> Response:
        """Returns one trial: its row, decisions, metrics, the end of its output, and the command that retrains it."""

        def work(record: ExperimentRecord) -> OneTrial:
            details = one_trial(record, trial)
            if details is None:
                raise NotThere(f"{name} has no trial of that id")
            return details

        return asked(served, name, work, "decisions", "metrics")

    @app.get("/api/experiments/{name}/audit", responses={200: {"model": AuditAnswer}})
    def audit(name: str) -> Response:
        """Returns how many of a sample of pruned trials would have beaten the winner, as far as tuner.audit knows."""

        def work(record: ExperimentRecord) -> AuditAnswer:
            return AuditAnswer(result_of(record), audit_command(record))

        return asked(served, name, work)


def asked(served: ServedExperiments, name: str, work: Callable[[ExperimentRecord], Any], *lists: str) -> Response:
    """Applies `work` to an experiment's record and returns the response.

    Args:
        lists: fields of the result that are lists and may be cut off.

    Raises:
        RequestError: the response cannot be computed, for example because the experiment's files are damaged.
    """
    record = served.view(name).record
    with blamed(name):
        result = work(record)
        return answer(result, **{each: getattr(result, each) for each in lists})
