"""Names the methods that can be compared, and builds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

from benchmarks.search_quality import baselines, libraries
from benchmarks.search_quality.remote import Remote
from benchmarks.search_quality.simulate import Method, Problem, Search
from tuner.errors import RequestError
from tuner.spec.auto import SpaceTraits, choose
from tuner.spec.experiment import AUTO, Experiment, Options
from tuner.spec.methods import SCHEDULERS, SEARCHERS

OWN_DEFAULT = "ours:auto+auto"
OPPONENTS: dict[str, Callable[..., Method]] = {
    "random": baselines.Random,
    "one-epoch": baselines.OneEpoch,
    "ray:asha+random": libraries.RayAsha,
    "ray:bohb": libraries.RayBohb,
    "optuna:tpe+halving": partial(libraries.OptunaStudy, pruner="halving"),
    "optuna:tpe+hyperband": partial(libraries.OptunaStudy, pruner="hyperband"),
    "syne:asha": partial(Remote, "asha"),
    "syne:asha-cqr": partial(Remote, "asha-cqr"),
    "syne:bohb": partial(Remote, "bohb"),
}
SHORT = {"eta": "reduction_factor", "grace": "grace_period", "samples": "num_samples"}
POOL = "@pool"  # ends the name of a method that chooses among the table's rows
POOLED = ("random", "one-epoch", "ray:asha+random", "ours:auto+", "ours:forest+")  # names of methods that can begin so
UNLIMITED = 100_000  # settings that a search may propose; more than any table's last budget pays for


def build(name: str, problem: Problem) -> Method:
    """Builds the method with this name for one search.

    Raises:
        RequestError: there is no such method, it has no such option, or it does not work with the space.
    """
    if problem.pooled and not name.startswith(POOLED):
        raise RequestError(f"--methods {name}: cannot choose among a table's rows; leave out {POOL}")
    head, *texts = name.removesuffix(POOL).split(",")
    is_ours = head.startswith("ours:")
    if not is_ours and head not in OPPONENTS:
        known = ", ".join(OPPONENTS)
        raise RequestError(f"--methods {name}: must be ours:SEARCHER+SCHEDULER or one of {known}; change the name")
    allowed = {"reduction_factor", "grace_period"} if head == "ray:asha+random" else set()
    allowed |= {field.name for field in dataclasses.fields(Experiment) if is_ours}
    options: dict[str, float] = {}
    for text in texts:
        short, _, value = text.partition("=")
        full = SHORT.get(short, short)
        if full not in allowed:
            names = ", ".join(sorted(allowed)) or "no options"
            raise RequestError(f"--methods {name}: {short}: {head} has {names}; leave it out")
        try:
            number = float(value)
        except ValueError:
            raise RequestError(f"--methods {name}: {text!r} must be NAME=NUMBER, such as eta=3; change it") from None
        options[full] = int(number) if number.is_integer() else number
    if is_ours:
        return _ours(problem, head.removeprefix("ours:"), options)
    return OPPONENTS[head](problem=problem, **options)


def _ours(problem: Problem, pair: str, options: dict[str, float]) -> Method:
    """Builds a search of this project; the pair is `searcher+scheduler`, either may be `auto`."""
    searcher, _, scheduler = pair.partition("+")
    for name, known in ((searcher, SEARCHERS), (scheduler, SCHEDULERS)):
        if name not in (AUTO, *known):
            raise RequestError(f"ours:{pair}: {name!r} must be one of {', '.join((AUTO, *known))}; change it")
    requested = Options(
        space="table",
        searcher=searcher,
        scheduler=scheduler,
        max_epochs=problem.max_epochs,
        metric="value",
        mode=problem.mode,
        seed=problem.seed,
        **{"num_samples": UNLIMITED, "max_concurrent_trials": problem.workers, **options},
    )
    # Both can propose all that a table has.
    experiment, _ = choose(requested, SpaceTraits(saves_checkpoints=True, searchers=("random", "forest")))
    return Search(experiment, problem.curves.domains(), problem.pool)
