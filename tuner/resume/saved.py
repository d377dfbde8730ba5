"""The experiment that `--resume` names, as its folder has it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tuner.experiment import Experiment, latest_experiment, load_experiment
from tuner.resume.storage import Store, is_uri, local_root


@dataclass(frozen=True)
class Saved:
    """An experiment and the facts that its experiment.json records beside it."""

    experiment: Experiment
    facts: dict[str, Any]


def saved(given: Experiment, name: str) -> Saved:
    """The experiment of this name below `given.results`, or the latest one; fetched from an object store if need be."""
    results = local_root(given.results)
    if is_uri(given.results):
        store = Store(given.results)
        names = store.names()
        name = names[-1] if name == "latest" and names else name
        if name in names:
            store.bring(name, results / name)
    elif name == "latest":
        name = latest_experiment(results)
    experiment, facts = load_experiment(results / name)
    return Saved(replace(experiment, results=given.results, name=name), facts)
