"""The experiment that `--resume` names, as its folder has it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tuner.drive.trust import code_of, refuse_links
from tuner.record.saved_experiment import COPY, FILE, damaged, latest_experiment, load_experiment
from tuner.record.storage import Store
from tuner.spec.experiment import LATEST, Experiment
from tuner.spec.places import is_uri, local_root


@dataclass(frozen=True)
class Saved:
    """An experiment, the facts that its experiment.json records beside it, and lines that name the code it runs."""

    experiment: Experiment
    facts: dict[str, Any]
    code: list[str]


def saved(given: Experiment, name: str, trusted: bool = False) -> Saved:
    """The experiment of this name below `given.results`, or the latest one; fetched from an object store if need be.

    Args:
        given: what the command line asks for beside it.
        trusted: run the code that the folder names all the same (`tuner.drive.trust`).

    Raises:
        RequestError: there is none, it is damaged, or its folder names code that must not be run.
    """
    results = local_root(given.results)
    if is_uri(given.results):
        store = Store(given.results)
        names = store.names()
        name = names[-1] if name == LATEST and names else name
        if name in names:
            store.bring(name, results / name)
    elif name == LATEST and not (results / LATEST).is_dir():  # unless an older version gave an experiment that name
        name = latest_experiment(results)
    folder = results / name
    experiment, facts = load_experiment(folder)
    try:
        sha256 = facts["space"]["sha256"]
    except (KeyError, TypeError) as error:
        raise damaged(folder, error) from None
    code = code_of(folder, (FILE, COPY), experiment.space, sha256, trusted=trusted, named_now=bool(given.space))
    if not trusted:
        refuse_links(folder)
    return Saved(replace(experiment, results=given.results, name=name), facts, code)
