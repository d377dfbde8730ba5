"""Builds the search algorithm that `--searcher` names; it draws all random numbers from the experiment's seed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from tuner.core.events import Event, first_start
from tuner.errors import RequestError
from tuner.record.texts import with_extra
from tuner.spec import domains, parameters
from tuner.spec.experiment import Experiment
from tuner.spec.methods import SEARCHERS, class_of
from tuner.spec.option_values import MOST_SAMPLES
from tuner.spec.space import Space
from tuner.tuning.searchers.libraries import LibrarySearcher
from tuner.tuning.searchers.past import Past
from tuner.tuning.searchers.sampling import SeededSearcher


def build_searcher(
    experiment: Experiment, space: Space, history: Sequence[Event] = (), past: Past | None = None
) -> SeededSearcher:
    """Checks and builds the searcher; with a `history`, it plans its random start as in the first session."""
    check_searcher(experiment, space)
    kind: type[SeededSearcher] = class_of(SEARCHERS[experiment.searcher], __package__)
    return kind(experiment, space, first_num_samples(experiment, history), past)


def first_num_samples(experiment: Experiment, history: Sequence[Event]) -> int:
    """Returns how many trials the search's first session had at most; without a history, those of the experiment."""
    number = (first := first_start(history)) and first.num_samples
    return (number or MOST_SAMPLES) if type(number) is int and number >= 0 else experiment.most_samples


def num_settings(experiment: Experiment, space: Space) -> int:
    """Returns the maximum number of settings that an experiment's searcher proposes."""
    kind: type[SeededSearcher] = class_of(SEARCHERS[experiment.searcher], __package__)
    own = SeededSearcher if issubclass(kind, LibrarySearcher) else kind  # the base class imports no library
    return own(experiment, space, experiment.most_samples).num_settings


def check_searcher(experiment: Experiment, space: Space) -> None:
    """Raises a RequestError if searcher or scheduler does not work with the space, or a package is not installed."""
    if experiment.scheduler == "pbt" and not space.mutable:
        raise RequestError(
            f"--scheduler pbt changes parameters while a trial trains, but space {experiment.space!r} has no mutable "
            f'parameters; add for example mutable=("lr",) to it, or use another scheduler'
        )
    for name in (name for name, domain in space.mutations.items() if parameters.branches(domain)):
        if experiment.scheduler == "pbt":
            raise RequestError(
                f"--scheduler pbt cannot change parameter {name!r}, a choice of dictionaries with domains; "
                f"leave it out of mutable, or use another scheduler"
            )
    if experiment.confirm and experiment.scheduler == "pbt":
        raise RequestError(
            f"--confirm {experiment.confirm}: --scheduler pbt changes settings while trials train, so none of them can "
            f"be trained again; leave out --confirm, or use another scheduler"
        )
    row = SEARCHERS[experiment.searcher]
    for package in row.packages:
        if importlib.util.find_spec(package) is None:
            raise RequestError(f"--searcher {experiment.searcher} needs the package {package}: {with_extra(row.extra)}")
    for name, domain in domains.leaves(space.encoded):
        kind, is_inside = domains.kind(domain), bool(parameters.chosen_by(name))
        if kind in row.refuses or (kind == "grid_search" and is_inside and experiment.searcher == "random"):
            other = "grid" if experiment.searcher == "random" else "random"
            raise RequestError(
                f"--searcher {experiment.searcher} cannot propose parameter {name!r}, a {kind}"
                f"{' inside a choice' * is_inside}; use --searcher {other}, or declare it as tune.choice or a range, "
                f"such as tune.uniform"
            )
