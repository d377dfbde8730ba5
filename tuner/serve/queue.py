"""The searches that were asked of the service: in files, so that a restart forgets none; and who may start next."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from tuner.errors import RequestError, printable
from tuner.record.files import bytes_in, write_atomically
from tuner.serve.options import Resume, Start, resume_arguments, start_arguments
from tuner.spec.experiment import Experiment
from tuner.spec.resources import Resources, resources_of

Phase = Literal["queued", "submitted", "stopping", "stopped", "failed", "done"]
ACTIVE: tuple[Phase, ...] = ("submitted", "stopping")


@dataclass(frozen=True)
class Search:
    """One search as the service knows it.

    Args:
        options: the experiment with every choice made.
        asked: what was asked for, the fields of a `Start`; of a `Resume` where `resumed`.
        since: when it was asked for, unix seconds; the queue's order among those of one priority.
        job: the Ray job's id, once it is submitted.
        message: why it waits, or how it failed.
    """

    name: str
    options: dict[str, Any]
    asked: dict[str, Any]
    since: float
    phase: Phase = "queued"
    job: str = ""
    message: str = ""
    resumed: bool = False

    def arguments(self) -> list[str]:
        """Of `tuner.run`, made anew from what was asked for; RequestError where that cannot be asked for."""
        try:
            if self.resumed:
                return resume_arguments(self.name, self.experiment.space, Resume.model_validate(self.asked))
            return start_arguments(Start.model_validate({**self.asked, "name": self.name}))
        except ValidationError as error:
            first = error.errors()[0]
            raise RequestError(f"{self.name}: {first['loc'][0] if first['loc'] else ''}: {first['msg']}") from None

    @property
    def experiment(self) -> Experiment:
        """What was asked for."""
        return Experiment(**self.options)

    @property
    def priority(self) -> int:
        """Of what was asked for, without checking all of it again."""
        return int(self.options.get("priority", 0))


SEARCH = TypeAdapter(Search)


class Queue:
    """Search by name, one file each; safe for one writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        found = [_read(path) for path in sorted(folder.glob("*.json"))]
        self._searches = {search.name: search for search in found if search}

    def __iter__(self) -> Any:
        return iter(sorted(self._searches.values(), key=lambda search: search.since))

    def get(self, name: str) -> Search | None:
        """The search of that name, if the service was asked for it."""
        return self._searches.get(name)

    def put(self, search: Search) -> Search:
        """Keeps the search, in the place of one of that name."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._folder / f"{search.name}.json", json.dumps(dataclasses.asdict(search), indent=1) + "\n")
        self._searches[search.name] = search
        return search

    def remove(self, name: str) -> None:
        """Forgets the search."""
        (self._folder / f"{name}.json").unlink(missing_ok=True)
        self._searches.pop(name, None)

    def phase(self, *phases: Phase) -> list[Search]:
        """Those in one of these phases, the first asked for first."""
        return [search for search in self if search.phase in phases]


def startable(
    waiting: Sequence[Search], running: Sequence[Search], nodes: Sequence[Mapping[str, float]], address: str = ""
) -> list[Search]:
    """Who may start now: as long as there is room for one trial beside what the others may use.

    The highest priority first, and then in the order asked for. A search may use as many trials at a time as its
    `max_concurrent_trials`, all that fit without it: that is the cap by which several share a cluster. Those of a lower
    priority give their places up (`tuner.engine.shares`), so they hold none against a higher one. Nobody overtakes the
    first in the queue, so a large one does not wait for ever.

    Args:
        nodes: of each node that there is or that an autoscaler may add, resource -> amount.
        address: of a cluster that may have more nodes than are known; empty = this machine.

    Raises:
        TooLarge: the first does not fit the empty cluster either.
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
        # What fits no node that is known is an autoscaler's: the search asks it, and says so where it gets none.
        if needed.fit(nodes) and any(free[name] + 1e-9 < amount for name, amount in _of_a_trial(needed).items()):
            break
        chosen.append(search)
    return chosen


class TooLarge(Exception):
    """A search whose trials fit nowhere, and why."""

    def __init__(self, search: Search, reason: str) -> None:
        super().__init__(reason)
        self.search, self.reason = search, reason


def _most_of(search: Search, nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What a search may use of the nodes; nothing where they cannot hold one of its trials any more."""
    try:
        needed = resources_of(search.experiment, nodes)
    except RequestError:
        return {"CPU": 0.0, "GPU": 0.0}
    return {name: amount * needed.concurrent for name, amount in _of_a_trial(needed).items()}


def _of_a_trial(needed: Resources) -> dict[str, float]:
    return {"CPU": needed.cpus, "GPU": needed.gpus}


def _read(path: Path) -> Search | None:
    """The search of a file; None where the file is damaged or holds what cannot be asked for, with a line."""
    try:
        search = SEARCH.validate_json(bytes_in(path.parent, path.name), strict=True)
        search.arguments(), search.experiment
        if search.name != path.stem:
            raise RequestError(f"it holds {search.name!r}")
    except (OSError, ValueError, TypeError, RequestError) as error:
        what = " ".join(str(error).split())[:200]
        line = printable(f"{path} is left out, because it is damaged: {what}; start that search again")
        print(line, file=sys.stderr, flush=True)
        return None
    return search
