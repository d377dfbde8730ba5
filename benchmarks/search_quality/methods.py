"""Names the methods that can be compared, and builds them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.search_quality.problem import Problem
from benchmarks.search_quality.simulate import Method
from tuner.errors import RequestError

Options = dict[str, str]
SHAPE = ("eta", "grace", "brackets")


@dataclass(frozen=True)
class Opponent:
    """A method of another library, or a baseline.

    Args:
        build: makes the method of one search.
        options: names of the options that its name may have.
        needs: packages that must be installed; the group `benchmarks` has them.
        script: the file in `opponents/` that runs in an environment of its own; empty if the method needs none.
    """

    build: Callable[[Problem, Options], Method]
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    script: str = ""


def _random(problem: Problem, options: Options) -> Method:
    from benchmarks.search_quality.baselines import Random

    return Random(problem)


def _one_epoch(problem: Problem, options: Options) -> Method:
    from benchmarks.search_quality.baselines import OneEpoch

    return OneEpoch(problem)


def _ray_asha(searcher: str) -> Callable[[Problem, Options], Method]:
    def build(problem: Problem, options: Options) -> Method:
        from benchmarks.search_quality import ray_asha

        built: Method = getattr(ray_asha, f"with_{searcher}")(problem, options)
        return built

    return build


def _ray_bohb(problem: Problem, options: Options) -> Method:
    from benchmarks.search_quality.ray_bohb import RayBohb

    return RayBohb(problem)


def _optuna(pruner: str) -> Callable[[Problem, Options], Method]:
    def build(problem: Problem, options: Options) -> Method:
        from benchmarks.search_quality import optuna_study

        built: Method = getattr(optuna_study, f"with_{pruner}")(problem)
        return built

    return build


def _remote(script: str, kind: str) -> Opponent:
    def build(problem: Problem, options: Options) -> Method:
        from benchmarks.search_quality.remote import Remote, server

        return Remote(server(script), kind, problem)

    return Opponent(build, script=script)


OWN_DEFAULT = "ours:auto+auto"
OPTUNA = ("optuna",)
OPPONENTS = {
    "random": Opponent(_random),
    "one-epoch": Opponent(_one_epoch),
    "ray:asha+random": Opponent(_ray_asha("random"), SHAPE),
    "ray:asha+optuna": Opponent(_ray_asha("optuna"), SHAPE, OPTUNA),
    "ray:asha+hyperopt": Opponent(_ray_asha("hyperopt"), SHAPE),
    "ray:bohb": Opponent(_ray_bohb, needs=("hpbandster", "ConfigSpace")),
    "optuna:tpe+halving": Opponent(_optuna("halving"), needs=OPTUNA),
    "optuna:tpe+hyperband": Opponent(_optuna("hyperband"), needs=OPTUNA),
    "syne:asha": _remote("syne_tune_search.py", "asha"),
    "syne:asha-cqr": _remote("syne_tune_search.py", "asha-cqr"),
    "syne:bohb": _remote("syne_tune_search.py", "bohb"),
    "neps:asha": _remote("neps_search.py", "asha"),
    "neps:async-hb": _remote("neps_search.py", "async_hb"),
    "smac:mf": _remote("smac_search.py", "hyperband"),
}


def build(name: str, problem: Problem) -> Method:
    """Builds the method with this name for one search.

    Raises:
        RequestError: there is no such method, it has no such option, or it does not work with the space.
    """
    head, *texts = name.split(",")
    options = dict(_option(name, text) for text in texts)
    if head.startswith("ours:"):
        from benchmarks.search_quality import ours

        return ours.build(problem, head.removeprefix("ours:"), options)
    if head not in OPPONENTS:
        known = ", ".join(OPPONENTS)
        raise RequestError(f"--methods {name}: must be ours:SEARCHER+SCHEDULER or one of {known}; change the name")
    opponent = OPPONENTS[head]
    if unknown := set(options) - set(opponent.options):
        allowed = ", ".join(opponent.options) or "no options"
        raise RequestError(f"--methods {name}: {', '.join(sorted(unknown))}: {head} has {allowed}; leave it out")
    for package in opponent.needs:
        if importlib.util.find_spec(package) is None:
            raise RequestError(f"--methods {name} needs the package {package}: uv run --group benchmarks ...")
    return opponent.build(problem, options)


def _option(name: str, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    try:
        float(value)
    except ValueError:
        raise RequestError(f"--methods {name}: {text!r} must be NAME=NUMBER, such as eta=3; change it") from None
    return key, value
