"""Loads, from its folder, the experiment that `--resume` names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from tuner.record.object_store import ObjectStore
from tuner.record.saved_experiment import COPY, FILE, damaged_experiment, latest_experiment, load_experiment
from tuner.record.storage.lock import only_driver
from tuner.spec.experiment import LATEST, Experiment, Options
from tuner.spec.places import is_uri, local_root
from tuner.spec.spaces import LoadedSpace
from tuner.tuning.resume.trust import code_of, names_its_space, refuse_links


@dataclass(frozen=True)
class ResumedExperiment:
    """An experiment that was loaded in order to resume it.

    Attributes:
        facts: what experiment.json has beside the options.
        space: the name by which `find_space` loads its space here (`tuner.tuning.resume.trust`).
        code: lines to print about the code of its space.
    """

    experiment: Experiment
    facts: dict[str, Any]
    space: str
    code: list[str]


def load_resumed(
    requested: Options, name: str, trusted: bool = False, given: LoadedSpace | None = None
) -> ResumedExperiment:
    """Loads the experiment `name` (the newest one for `latest`) from `requested.results`; downloads it from a store.

    Args:
        requested: the options of the command line.
        trusted: skip the checks of the folder's links and of the code that it names (`tuner.tuning.resume.trust`).
        given: the space as the caller's object, so that no code that the folder names is run.

    Raises:
        RequestError: there is no such experiment, it is damaged, or its links or its code are refused.
    """
    results = local_root(requested.results)
    if is_uri(requested.results):
        store = ObjectStore(requested.results)
        names = store.names()
        name = names[-1] if name == LATEST and names else name
        if name in names:
            store.bring(name, results / name)
    elif name == LATEST:
        name = latest_experiment(results)
    folder = results / name
    experiment, facts = load_experiment(folder)
    try:
        sha256 = facts["space"]["sha256"]
    except (KeyError, TypeError) as error:
        raise damaged_experiment(folder, error) from None
    space = experiment.space
    if given:
        code = [] if given.sha256 == sha256 else [f"NOTE: the code of {given.name} has changed since the search"]
    else:
        named_now = bool(requested.space)
        if named_now and names_its_space(requested.space, folder, space):
            space = requested.space
        space, code = code_of(folder, (FILE, COPY), space, sha256, trusted=trusted, named_now=named_now)
    if not trusted:
        refuse_links(folder)
    return ResumedExperiment(replace(experiment, results=requested.results, name=name), facts, space, code)


def load_locked(stack: ExitStack, load: Callable[[], ResumedExperiment]) -> ResumedExperiment:
    """Loads an experiment and locks its folder until `stack` ends; only one driver may have it."""
    stack.enter_context(only_driver(load().experiment.folder))
    return load()  # again, because another driver may have extended it before this one got the lock
