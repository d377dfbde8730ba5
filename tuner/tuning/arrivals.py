"""Compares what the trials of a search saw of their parameters; ends the search if a parameter reaches no training.

`tuner.spec.arrived` says what a trial sees, and when its value has arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tuner.errors import RequestError
from tuner.errors.users_code import shown_path
from tuner.spec import domains
from tuner.spec.arrived import Seen
from tuner.spec.experiment import Experiment
from tuner.spec.script_text import line_that_sets
from tuner.spec.spaces import LoadedSpace, with_line

MAX_SIGHTINGS = 100  # maximum number of different sightings of a parameter that are kept
FEW = 20  # a domain of fewer values counts as a choice
ENOUGH = 10  # with this many trials, one live value proves that a parameter is missing, whatever the other parameters


class Sighting(NamedTuple):
    """What one trial saw of one parameter; `others` has its values of the other choices."""

    trial: str
    seen: Seen
    others: tuple[str, ...]

    @property
    def live(self) -> frozenset[str]:
        return frozenset({*self.seen.live, *([self.seen.own] if self.seen.arrived else [])})


class Arrivals:
    """Hears from each trial at its first report; calls `refuse` once two trials prove that a parameter is missing.

    The proof: the two have different values of the parameter, but the live objects of its name have the same in both,
    and at least one of the trials finds its value nowhere. If the parameter is a choice, the trials must agree in the
    other choices: a script may combine choices, as in `args.lr *= args.batch_size / 256`. A parameter that has been
    seen with different values is never missing.
    """

    def __init__(
        self, experiment: Experiment, loaded_space: LoadedSpace, refuse: Callable[[RequestError], None]
    ) -> None:
        self._experiment, self._loaded, self._refuse = experiment, loaded_space, refuse
        checked = dict(domains.leaves(loaded_space.space.searched))
        self._choices = [name for name, domain in checked.items() if has_few_values(domain)]
        self._sightings: dict[str, list[Sighting]] = {n: [] for n in checked if n not in experiment.unchecked}
        self._reaches: set[str] = set()
        self._has_heard = False

    def hear(self, trial_id: str, seen: dict[str, Seen]) -> None:
        self._has_heard = self._has_heard or bool(seen)
        for name, sightings in self._sightings.items():
            inside = [each for path, each in seen.items() if path.startswith(f"{name}/")]
            if any(each.arrived for each in inside):
                self._reaches.add(name)  # a dictionary of a choice, of which the code has taken the values
            others = tuple(seen[n].own if n in seen else "" for n in self._choices if n != name)
            new = Sighting(trial_id, seen.get(name) or Seen("", False, {}), others)
            if name in self._reaches or not new.live or len(sightings) == MAX_SIGHTINGS:
                continue
            if any(new.live != each.live for each in sightings):
                self._reaches.add(name)
            elif proof := next((each for each in sightings if self._proves(name, each, new)), None):
                self._refuse(self._error(name, proof, new))
            sightings.append(new)

    def unchecked(self) -> dict[str, str]:
        """Returns the parameters that were not seen to reach the training, each with what was seen instead, if any."""
        found = {}
        for name, sightings in self._sightings.items() if self._has_heard else ():
            missing = next((each for each in sightings if not each.seen.arrived), None)
            if name in self._reaches or (sightings and not missing):
                continue
            value, place = next(((v, at) for v, at in missing.seen.live.items())) if missing else ("", "")
            found[name] = f"{place} is {value} in all trials" if missing and len(sightings) > 1 else ""
        return found

    def _proves(self, name: str, one: Sighting, other: Sighting) -> bool:
        if one.seen.own == other.seen.own or (one.seen.arrived and other.seen.arrived):
            return False
        is_enough = len(self._sightings[name]) >= ENOUGH
        return name not in self._choices or one.others == other.others or is_enough

    def _error(self, name: str, one: Sighting, other: Sighting) -> RequestError:
        first, second = sorted((one, other))
        value, place = next((v, at) for each in (one, other) for v, at in each.seen.live.items())
        path, e, short = self._loaded.path, self._experiment, name.rpartition("/")[2]
        found = line_that_sets(path, short, value) if path else None
        where = f" ({shown_path(found[0])}, line {found[1]})" if found else ""
        text = with_line(f"parameter {name!r} does not reach the training", path)
        values = f"{short}={first.seen.own} in trial {first.trial} and {second.seen.own} in trial {second.trial}"
        return RequestError(
            f"--space {e.space}: {text}: {values}, but {place} is {value} in both{where}; correct this and give "
            f"another --name, or, if it is right, --resume {e.name} --unchecked {name}"
        )


def has_few_values(domain: Any) -> bool:
    kind = domains.kind(domain)
    if kind in domains.LISTED or kind == "sample_from":
        return True
    if kind == "normal":
        return False
    span = domains.Range(domain)
    step = span.step or int(span.whole)
    return bool(step) and (span.high - span.low) / step < FEW
