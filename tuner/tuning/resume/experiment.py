"""Loads, from its folder, the experiment that `--resume` names."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.record.saved_experiment import COPY, FILE, damaged_experiment, latest_experiment, load_experiment
from tuner.record.storage.lock import only_driver
from tuner.record.storage.object_store import ObjectStore
from tuner.spec.experiment import LATEST, Experiment, is_uri, local_root
from tuner.tuning.requests import SearchCall, options_over
from tuner.tuning.resume.trust import OPTION, code_of, names_its_space, recorded_path, refuse_links


@dataclass(frozen=True)
class ResumedExperiment:
    """An experiment that was loaded in order to resume it."""

    experiment: Experiment
    facts: dict[str, Any]  # what experiment.json has beside the options
    space: str  # the name by which `find_space` loads its space here
    code: list[str]  # lines to print about the code of its space


def load_resumed(call: SearchCall, stack: ExitStack) -> ResumedExperiment:
    """Loads the experiment to resume, downloads it from an object store, and locks its folder until `stack` ends.

    A dry run does not lock the folder. If the caller has the space as an object, no code that the folder names is run.
    Raises a RequestError if there is no such experiment, it is damaged or runs elsewhere, or `trust` refuses it.
    """
    name, results = call.resume, call.given.get("results", "results")
    place, named = local_root(results), call.given.get("space", "")
    if is_uri(results):
        store = ObjectStore(results)
        names = store.names()
        name = names[-1] if name == LATEST and names else name
        if name in names:
            store.bring(name, place / name)
    elif name == LATEST:
        name = latest_experiment(place)
    folder = place / name
    read = _stamp(folder)
    experiment, facts = load_experiment(folder)
    try:
        sha256 = facts["space"]["sha256"]
    except (KeyError, TypeError) as error:
        raise damaged_experiment(folder, error) from None
    space = experiment.space
    if call.space is None:
        if named and names_its_space(named, space, recorded_path(facts)):
            space = named
        space, code = code_of(folder, (FILE, COPY), space, sha256, trusted=call.trust, named_now=bool(named))
    else:
        same = call.space.sha256 == sha256
        code = [] if same else [f"NOTE: the code of {call.space.name} has changed since the search"]
    if not call.trust:
        refuse_links(folder)
        address = options_over(experiment, call.given).address
        if address not in ("", "auto", call.given.get("address")):
            raise RequestError(
                f"{folder / FILE} names the cluster {address}; to join it, give --address {address} or {OPTION}"
            )
    if not call.dry_run:
        stack.enter_context(only_driver(folder))
        if _stamp(folder) != read:
            raise RequestError(f"{folder}: another process has just changed this experiment; give the command again")
    return ResumedExperiment(replace(experiment, results=results, name=name), facts, space, code)


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Returns what differs once experiment.json has been written again: its inode and its time in nanoseconds."""
    try:
        file = (folder / FILE).lstat()
    except OSError:
        return None
    return file.st_ino, file.st_mtime_ns
