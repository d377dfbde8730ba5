"""The API's answers to a question: what if, one trial, two parameters, importance, false prunes. They read only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from weakref import WeakKeyDictionary

from fastapi import FastAPI, Path, Query
from starlette.responses import Response

from tuner.errors import RequestError
from tuner.results import ExperimentRecord
from tuner.serve.answers import answer
from tuner.serve.control import Desk
from tuner.serve.guard import refusal
from tuner.serve.store import NotThere
from tuner.views.audit_record import AuditResult, result_of
from tuner.views.contour import contour_of, draw_contour
from tuner.views.importance import draw_importance, importance_of
from tuner.views.one_trial import OneTrial, one_trial
from tuner.views.standing import Standing
from tuner.views.whatif import MOST_BRACKETS, Replayed, WhatIf, what_if
from tuner.views.whatif_figure import cuts_of, draw_whatif

Parameter = Annotated[str, Query(max_length=500, description="a parameter that differs between trials")]


@dataclass(frozen=True)
class WhatIfAnswer:
    """A replay, and its figure of Plotly's schema."""

    outcome: WhatIf
    figure: dict[str, Any]


@dataclass(frozen=True)
class FigureAnswer:
    """A figure of Plotly's schema."""

    figure: dict[str, Any]


@dataclass(frozen=True)
class AuditAnswer:
    """What the audit found so far, None where there was none; `command` runs it, or goes on with it."""

    result: AuditResult | None
    command: str


def add_insight(app: FastAPI, desk: Desk) -> None:
    """Adds the routes to the app."""
    slow = _Slow()

    @app.get("/api/experiments/{name}/what-if", responses={200: {"model": WhatIfAnswer}})
    def what_if_route(
        name: str,
        scheduler: Annotated[Replayed | Literal[""], Query(description="empty = the search's own")] = "",
        grace_period: Annotated[int, Query(ge=1, le=10**6, description="epochs before a trial may be stopped")] = 1,
        reduction_factor: Annotated[float, Query(gt=1, le=1000, description="1 in so many goes on")] = 2,
        brackets: Annotated[int, Query(ge=1, le=MOST_BRACKETS, description="of asha")] = 1,
    ) -> Response:
        """The recorded curves judged by other rules: who would have been stopped where, epochs saved, the best lost."""

        def work(record: ExperimentRecord) -> WhatIfAnswer:
            rules = scheduler or record.experiment.scheduler
            outcome = what_if(record, rules, grace_period, reduction_factor, brackets)
            return WhatIfAnswer(outcome, draw_whatif(cuts_of(record, outcome), outcome, record.experiment.metric))

        return asked(desk, name, work)

    @app.get("/api/experiments/{name}/contour", responses={200: {"model": FigureAnswer}})
    def contour(name: str, x: Parameter, y: Parameter) -> Response:
        """The metric over two parameters, smoothed between the trials."""

        def work(record: ExperimentRecord) -> FigureAnswer:
            experiment = record.experiment
            return FigureAnswer(draw_contour(contour_of(record, x, y), experiment.metric, experiment.mode))

        return asked(desk, name, work)

    @app.get("/api/experiments/{name}/importance", responses={200: {"model": FigureAnswer}})
    def importance(name: str) -> Response:
        """How much each parameter matters, with its uncertainty; needs the extra `importance`."""

        def work(record: ExperimentRecord) -> FigureAnswer:
            return FigureAnswer(slow.kept(record, lambda: draw_importance(importance_of(record))))

        return asked(desk, name, work)

    @app.get("/api/experiments/{name}/trials/{trial}", responses={200: {"model": OneTrial}})
    def trial_route(name: str, trial: Annotated[str, Path(max_length=200)]) -> Response:
        """One trial: its row, decisions, metrics, the end of its output, and the command that trains it again."""

        def work(record: ExperimentRecord) -> OneTrial:
            found = one_trial(record, trial)
            if found is None:
                raise NotThere(f"{name} has no trial of that id")
            return found

        return asked(desk, name, work)

    @app.get("/api/experiments/{name}/audit", responses={200: {"model": AuditAnswer}})
    def audit(name: str) -> Response:
        """How many of a sample of pruned trials would have beaten the winner, as far as it has been measured."""

        def work(record: ExperimentRecord) -> AuditAnswer:
            experiment = record.experiment
            command = f"python -m tuner.audit {experiment.name} --trials 5 --results {experiment.results}"
            return AuditAnswer(result_of(record), command if experiment.space else "")

        return asked(desk, name, work)


def asked(desk: Desk, name: str, work: Callable[[ExperimentRecord], Any]) -> Response:
    """The answer to a question about an experiment; 422 where the question cannot be answered, with why."""
    record = desk.view(name).record
    try:
        return answer(work(record))
    except NotThere:
        raise
    except RequestError as error:
        return refusal(422, str(error))


class _Slow:
    """Figures that take seconds, kept with the record that they were drawn of; one is made at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: WeakKeyDictionary[Standing, dict[str, Any]] = WeakKeyDictionary()

    def kept(self, record: ExperimentRecord, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        with self._lock:
            if record.standing not in self._made:
                self._made[record.standing] = make()
            return self._made[record.standing]
