"""This project's searchers and schedulers, by the simulation of its own searches."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

from benchmarks.search_quality.problem import Problem
from benchmarks.search_quality.simulate import Method, Search
from tuner.errors import RequestError
from tuner.spec.auto import SearchFacts, choose, settled
from tuner.spec.experiment import AUTO, Experiment, Options, SchedulerName, SearcherName

SHORT = {"eta": "reduction_factor", "grace": "grace_period", "samples": "num_samples"}
UNLIMITED = 100_000  # settings that a search may propose; more than any table's last budget pays for


def build(problem: Problem, pair: str, options: dict[str, str]) -> Method:
    """Builds a search of this project.

    Args:
        pair: `searcher+scheduler`; either may be `auto`, as on the command line.
        options: `eta`, `grace` and `samples`, or any option of an experiment by its name.
    """
    searcher, _, scheduler = pair.partition("+")
    for name, known in ((searcher, get_args(SearcherName)), (scheduler, get_args(SchedulerName))):
        if name not in (AUTO, *known):
            raise RequestError(f"ours:{pair}: {name!r} must be one of {', '.join((AUTO, *known))}; change it")
    fields = {field.name for field in dataclasses.fields(Experiment)}
    chosen: dict[str, Any] = {"num_samples": UNLIMITED, "max_concurrent_trials": problem.workers}
    for name, text in options.items():
        full = SHORT.get(name, name)
        if full not in fields:
            raise RequestError(f"option {name!r}: must be {', '.join(SHORT)}, or an experiment's option; change it")
        number = float(text)
        chosen[full] = int(number) if number.is_integer() else number
    requested = Options(
        space="table",
        searcher=searcher,  # type: ignore[arg-type]
        scheduler=scheduler,  # type: ignore[arg-type]
        max_epochs=problem.max_epochs,
        metric="value",
        mode=problem.mode,  # type: ignore[arg-type]
        seed=problem.seed,
        **chosen,
    )
    searchers: list[SearcherName] = ["random", "forest"]  # both can propose all that a table has
    facts = SearchFacts(saves_checkpoints=True, searchers=tuple(searchers))
    experiment = settled(requested, choose(requested, facts))
    return Search(experiment, problem.curves.domains())
