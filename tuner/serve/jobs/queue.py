"""A search of the service's queue, which lies in a file of its own, and the rule for who starts next."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from tuner.errors import RequestError, printable
from tuner.record.storage.files import bytes_in
from tuner.spec.experiment import Experiment
from tuner.spec.resources import resources_of

Phase = Literal["queued", "submitted", "stopping", "stopped", "failed", "done"]
ACTIVE: tuple[Phase, ...] = ("submitted", "stopping")
WAITS_OR_RUNS: tuple[Phase, ...] = ("queued", *ACTIVE)


@dataclass(frozen=True)
class Search:
    """One search that the service was asked to run.

    Args:
        options: all fields of the experiment, with defaults filled in.
        arguments: those of `tuner.run`, made from the request.
        since: the time of the request in unix seconds; searches of equal priority start in this order.
        job: the id of the Ray job, once it is submitted.
        message: why the search waits, failed or stopped.
        submitted: the time when it was submitted, in unix seconds; 0 before that.
    """

    name: str
    options: dict[str, Any]
    arguments: list[str]
    since: float
    phase: Phase = "queued"
    job: str = ""
    message: str = ""
    submitted: float = 0.0

    @property
    def experiment(self) -> Experiment:
        return Experiment(**self.options)

    @property
    def priority(self) -> int:
        return int(self.options.get("priority", 0))


def read_queue(folder: Path) -> list[Search]:
    """Reads the searches of a state folder's queue; prints a line for each damaged file and leaves it out."""
    searches = []
    for path in sorted(folder.glob("*.json")):
        try:
            search = TypeAdapter(Search).validate_json(bytes_in(folder, path.name), strict=True)
            Experiment(**search.options)  # raises an error if an option is wrong
            if search.name != path.stem:
                raise RequestError(f"its name is {search.name!r}, but must be {path.stem!r} as in the file name")
            searches.append(search)
        except (OSError, ValueError, TypeError, RequestError) as error:
            what = " ".join(str(error).split())[:200]
            line = f"{path} is left out, because it is damaged: {what}; start that search again"
            print(printable(line), file=sys.stderr, flush=True)
    return searches


def startable(
    waiting: Sequence[Search], running: Sequence[Search], nodes: Sequence[Mapping[str, float]], address: str = ""
) -> list[tuple[Search, str]]:
    """Chooses the waiting searches that may start now, by priority and then by the time of the request.

    A search may start if the free resources suffice for one of its trials. A resource is free if no other search
    reserves it. A search reserves the resources of `max_concurrent_trials` trials; without that limit, of as many
    trials as fit. So the limit lets several searches share a cluster. Running searches of lower priority reserve
    nothing: they release their resources to a search of higher priority (`tuner.engine.cluster.nodes`).

    If a search cannot start, the searches after it wait, too: small ones could delay a large one for ever.

    Args:
        nodes: the resources (name -> amount) of each node that exists or that an autoscaler may add.
        address: address of a cluster that may have more nodes than `nodes`; empty = this machine.

    Returns:
        The searches, each with an empty text, or with the reason why it cannot start even on the empty cluster.
    """
    chosen: list[tuple[Search, str]] = []
    for search in sorted(waiting, key=lambda each: -each.priority):
        try:
            needed = resources_of(replace(search.experiment, address=address), nodes)
        except RequestError as error:
            chosen.append((search, str(error)))
            continue
        holders = [other for other in running if other.priority >= search.priority]
        holders += [other for other, problem in chosen if not problem]
        used = [_most_of(holder, nodes) for holder in holders]
        for name, amount in {"CPU": needed.cpus, "GPU": needed.gpus}.items():
            free = sum(node.get(name, 0.0) for node in nodes) - sum(most[name] for most in used)
            # A trial that fits no known node starts anyway: the search requests a node from the autoscaler, and reports
            # it if it gets none.
            if free + 1e-9 < amount and needed.fit(nodes):
                return chosen
        chosen.append((search, ""))
    return chosen


def _most_of(search: Search, nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the CPUs and GPUs that a search reserves; 0 if a trial of it does not fit the nodes any more."""
    try:
        needed = resources_of(search.experiment, nodes)
    except RequestError:
        return {"CPU": 0.0, "GPU": 0.0}
    return {"CPU": needed.cpus * needed.concurrent, "GPU": needed.gpus * needed.concurrent}
