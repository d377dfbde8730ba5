"""The service's queue of searches, kept in files so that it survives a restart, and the rule for who starts next."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from tuner.errors import RequestError, printable
from tuner.record.storage.files import bytes_in, write_atomically
from tuner.serve.jobs.options import Resume, Start, resume_arguments, start_arguments
from tuner.spec.experiment import Experiment
from tuner.spec.resources import Resources, resources_of

Phase = Literal["queued", "submitted", "stopping", "stopped", "failed", "done"]
ACTIVE: tuple[Phase, ...] = ("submitted", "stopping")


@dataclass(frozen=True)
class Search:
    """One search that the service was asked to run.

    Args:
        options: all fields of the experiment, with defaults filled in.
        asked: the fields of the request: a `Start`, or a `Resume` if `resumed`.
        since: the time of the request in unix seconds; searches of equal priority start in this order.
        job: the id of the Ray job, once it is submitted.
        message: why the search waits, failed or stopped.
        submitted: the time when it was submitted, in unix seconds; 0 before that.
    """

    name: str
    options: dict[str, Any]
    asked: dict[str, Any]
    since: float
    phase: Phase = "queued"
    job: str = ""
    message: str = ""
    resumed: bool = False
    submitted: float = 0.0

    def arguments(self) -> list[str]:
        """Returns the arguments for `tuner.run`, built from the fields of the request.

        Raises:
            RequestError: a request may not set these fields or values.
        """
        try:
            if self.resumed:
                return resume_arguments(self.name, self.experiment.space, Resume.model_validate(self.asked))
            return start_arguments(Start.model_validate({**self.asked, "name": self.name}))
        except ValidationError as error:
            first = error.errors()[0]
            raise RequestError(f"{self.name}: {first['loc'][0] if first['loc'] else ''}: {first['msg']}") from None

    @property
    def experiment(self) -> Experiment:
        """The requested experiment, built from `options`."""
        return Experiment(**self.options)

    @property
    def priority(self) -> int:
        """The experiment's priority; read directly, because building the experiment checks all its fields again."""
        return int(self.options.get("priority", 0))


SEARCH = TypeAdapter(Search)


class Queue:
    """The searches by name, each in a file of its own; only one process may write.

    Threads that share the queue hold `lock` around each use.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.lock = folder, threading.Lock()
        searches = [_read(path) for path in sorted(folder.glob("*.json"))]
        self._searches = {search.name: search for search in searches if search}

    def __iter__(self) -> Any:
        return iter(sorted(self._searches.values(), key=lambda search: search.since))

    def get(self, name: str) -> Search | None:
        """Returns the search of that name; None if the queue has none."""
        return self._searches.get(name)

    def put(self, search: Search) -> Search:
        """Saves the search; replaces one of the same name."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._folder / f"{search.name}.json", json.dumps(dataclasses.asdict(search), indent=1) + "\n")
        self._searches[search.name] = search
        return search

    def remove(self, name: str) -> None:
        """Deletes the search from the queue."""
        (self._folder / f"{name}.json").unlink(missing_ok=True)
        self._searches.pop(name, None)

    def phase(self, *phases: Phase) -> list[Search]:
        """Returns the searches in one of these phases, the earliest request first."""
        return [search for search in self if search.phase in phases]


def startable(
    waiting: Sequence[Search], running: Sequence[Search], nodes: Sequence[Mapping[str, float]], address: str = ""
) -> list[Search]:
    """Chooses the waiting searches that may start now, by priority and then by the time of the request.

    A search may start if the free resources suffice for one of its trials. A resource is free if no other search
    reserves it. A search reserves the resources of `max_concurrent_trials` trials; without that limit, of as many
    trials as fit. So the limit lets several searches share a cluster. Running searches of lower priority reserve
    nothing: they release their resources to a search of higher priority (`tuner.engine.cluster.nodes`).

    If a search cannot start, the searches after it wait, too. Otherwise small searches could delay a large one for
    ever.

    Args:
        nodes: the resources (name -> amount) of each node that exists or that an autoscaler may add.
        address: address of a cluster that may have more nodes than `nodes`; empty = this machine.

    Raises:
        TooLarge: a trial of a search whose turn it is does not fit even the empty cluster.
    """
    there = {name: sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    chosen: list[Search] = []
    for search in sorted(waiting, key=lambda each: -each.priority):
        try:
            needed = resources_of(replace(search.experiment, address=address), nodes)
        except RequestError as error:
            raise TooLarge(search, str(error)) from error
        holders = [*(other for other in running if other.priority >= search.priority), *chosen]
        used = [_most_of(holder, nodes) for holder in holders]
        free = {name: amount - sum(most[name] for most in used) for name, amount in there.items()}
        # A trial that fits no known node starts anyway: the search requests a node from the autoscaler, and reports it
        # if it gets none.
        if needed.fit(nodes) and any(free[name] + 1e-9 < amount for name, amount in _of_a_trial(needed).items()):
            break
        chosen.append(search)
    return chosen


class TooLarge(Exception):
    """Raised for a search whose trials fit no node; `reason` says why."""

    def __init__(self, search: Search, reason: str) -> None:
        super().__init__(reason)
        self.search, self.reason = search, reason


def _most_of(search: Search, nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the CPUs and GPUs that a search reserves; 0 if a trial of it does not fit the nodes any more."""
    try:
        needed = resources_of(search.experiment, nodes)
    except RequestError:
        return {"CPU": 0.0, "GPU": 0.0}
    return {name: amount * needed.concurrent for name, amount in _of_a_trial(needed).items()}


def _of_a_trial(needed: Resources) -> dict[str, float]:
    return {"CPU": needed.cpus, "GPU": needed.gpus}


def _read(path: Path) -> Search | None:
    """Reads a search from its file.

    Prints a line and returns None if the file is damaged or contains what a request may not set.
    """
    try:
        search = SEARCH.validate_json(bytes_in(path.parent, path.name), strict=True)
        search.arguments(), search.experiment
        if search.name != path.stem:
            raise RequestError(f"its name is {search.name!r}, but must be {path.stem!r} as in the file name")
    except (OSError, ValueError, TypeError, RequestError) as error:
        what = " ".join(str(error).split())[:200]
        line = printable(f"{path} is left out, because it is damaged: {what}; start that search again")
        print(line, file=sys.stderr, flush=True)
        return None
    return search
