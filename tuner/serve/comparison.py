"""The route that compares experiments: what each one cost and found, figures, and how their options differ."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import FastAPI, Query
from starlette.responses import Response

from tuner.errors import RequestError, blamed
from tuner.record.reading import NotYet
from tuner.serve.answers import answer, figure_text
from tuner.serve.reading.results_reader import NotThere
from tuner.serve.reading.summary import Summary
from tuner.serve.served import ServedExperiments, with_job
from tuner.views.compare import (
    MOST_COMPARED,
    Clock,
    Compared,
    ComparedRow,
    DifferenceRow,
    choices_of,
    compared_of,
    default_of,
    differences,
    draw_distributions,
    draw_progress,
    look_of,
)
from tuner.views.figures.values import PATTERN

COMPARE_S = 3.0  # seconds for reading one request's experiments; the next request continues, so the page fills early
MAX_CACHED = 200  # experiments whose data for comparisons stay in memory: at most 900 kB each
CLOCKS: tuple[Clock, ...] = ("epochs", "seconds", "trials")
STATES = {NotYet: "reading", NotThere: "missing", RequestError: "damaged"}  # error -> state; the first that matches
Names = Annotated[
    list[Annotated[str, Query(max_length=200)]],
    Query(min_length=1, max_length=MOST_COMPARED, description="experiments to compare; repeat `name` for each"),
]


@dataclass(frozen=True)
class MetricGroup:
    """Experiments that optimise the same metric in the same direction."""

    metric: str
    mode: str
    names: list[str]


@dataclass(frozen=True)
class Comparison:
    """The requested experiments, and how their options and parameters differ.

    The figures, in Plotly's schema, show the experiments of `groups[group]`: the best value so far over epochs, seconds
    and trials, and the distributions of the value that `values` names, one of `value_choices`. `columns` names
    experiments; each row of `options` and `parameters` lists its `values` in the same order. `left_out` counts rows
    that did not fit.
    """

    groups: list[MetricGroup]
    group: int
    value_choices: list[str]
    values: str
    columns: list[str]
    experiments: list[ComparedRow] = field(default_factory=list)
    options: list[DifferenceRow] = field(default_factory=list)
    parameters: list[DifferenceRow] = field(default_factory=list)
    left_out: int = 0
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)


class Comparisons:
    """Reads the data for comparisons; caches it for the MAX_CACHED most recently requested experiments; thread-safe."""

    def __init__(self, served: ServedExperiments) -> None:
        self._served = served
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Summary, Compared]] = OrderedDict()

    def of(self, name: str, until: float) -> tuple[Summary, Compared]:
        """Returns an experiment's summary and data; raises NotYet if not read by `until`, and the errors of `view`."""
        unchanged = self._served.reader.unchanged(name) if self._served.folder(name) else None
        kept = self._kept.get(name)
        if kept is None or kept[0] is not unchanged:
            if time.monotonic() > until:
                raise NotYet("other experiments are being read; this one follows")
            view = self._served.view(name, until)
            with blamed(name):
                kept = view.summary, compared_of(view.record)
        with self._lock:
            self._kept[name] = kept
            self._kept.move_to_end(name)
            while len(self._kept) > MAX_CACHED:
                self._kept.popitem(last=False)
        return kept


def add_compare(app: FastAPI, served: ServedExperiments) -> None:
    comparisons = Comparisons(served)

    @app.get("/api/compare", responses={200: {"model": Comparison}})
    def compare(
        name: Names,
        group: Annotated[int, Query(ge=0, le=MOST_COMPARED, description="index in `groups`: the group to draw")] = 0,
        values: Annotated[str, Query(pattern=PATTERN, description="one of `value_choices`; others = default")] = "",
    ) -> Response:
        """Compares experiments: best value so far, distribution of the values, cost, and differences of their options.

        An experiment that is missing, damaged or not read yet has an `error`; the others are compared.
        """
        until = time.monotonic() + COMPARE_S
        rows: list[ComparedRow] = []
        drawn: list[Compared] = []
        groups: dict[tuple[str, str], list[str]] = {}
        for place, each in enumerate(dict.fromkeys(name)):
            color, dash = look_of(place)
            try:
                summary, compared = comparisons.of(each, until)
            except RequestError as error:
                state = next(state for kind, state in STATES.items() if isinstance(error, kind))
                rows.append(ComparedRow(each, color, dash, str(error), state))
                continue
            groups.setdefault((summary.metric, summary.mode), []).append(each)
            own = with_job(summary, served.search(each), served.spaces)
            shared = {name: getattr(own, name) for name in ("state", "space", "searcher", "scheduler")}
            index = list(groups).index((summary.metric, summary.mode))
            rows.append(replace(compared.row, name=each, color=color, dash=dash, group=index, **shared))
            drawn.append(replace(compared, row=rows[-1]))
        group = group if group < len(groups) else 0
        chosen = [one for one in drawn if one.row.group == group]
        choices = choices_of(chosen)
        values = values if values in choices else default_of(chosen)
        columns = [one.row.name for one in drawn]
        begun = Comparison([MetricGroup(*of, names) for of, names in groups.items()], group, choices, values, columns)
        figures: dict[str, bytes] = {}
        if chosen:
            figures = {clock: figure_text(draw_progress(chosen, clock)) for clock in CLOCKS}
            figures["values"] = figure_text(draw_distributions(chosen, values))
        return answer(
            begun,
            figures=figures,
            experiments=rows,
            options=differences([one.options for one in drawn]),
            parameters=differences([one.parameters for one in drawn]),
        )
