"""The values that the steps of a session pass on: what a caller asks, what is resumed, and what has been checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tuner.core.events import Event
from tuner.spec.experiment import BUDGETS, Experiment, Options, Table, values_of
from tuner.spec.methods import NEED_NUMBER
from tuner.spec.resources import Resources
from tuner.spec.spaces import LoadedSpace

if TYPE_CHECKING:
    from tuner.engine.processes.client import Shared
    from tuner.training.data import Splits


@dataclass
class SearchCall:
    """A request for a search, from a command line or a call of `tuner.search`."""

    given: dict[str, Any]  # the options that the caller gave, by name
    space: LoadedSpace | None = None  # defined in the calling program; None if `given` or the resumed search names it
    resume: str = ""
    trust: bool = False
    preflight: bool = True
    dry_run: bool = False
    table: Table = "fit"
    command: list[str] = field(default_factory=list)
    begun: Experiment | None = None  # `run_search` sets it once the options are checked

    def options_over(self, default: Options) -> Options:
        """Returns `default` with the caller's options; a new search also keeps the space's own options of `added`.

        A new search with a budget has no other limit on its trials, unless the caller gives one, or a searcher or
        scheduler that needs one.
        """
        added = () if isinstance(default, Experiment) else ("point", "prior", "stop", "constraint", "unchecked")
        needs_number = any(self.given.get(name) in NEED_NUMBER for name in ("searcher", "scheduler"))
        if added and not needs_number and any(self.given.get(name) for name in BUDGETS):
            self.given.setdefault("num_samples", 0)
        more = {name: (*getattr(default, name), *self.given[name]) for name in added if name in self.given}
        return Options(**{**values_of(default), **self.given, **more})


class Resumed(NamedTuple):
    """An experiment to resume, the facts of experiment.json besides its options, and the name that loads its space."""

    experiment: Experiment
    facts: dict[str, Any]
    space: str


@dataclass(frozen=True)
class Request:
    """A checked request to run a search; its data, a cluster's resources and the space's code are checked later."""

    experiment: Experiment
    loaded_space: LoadedSpace
    facts: dict[str, Any]
    history: list[Event]
    resources: Resources | None  # None if they depend on a cluster that the driver has not joined
    wandb_mode: str
    splits: Splits | None = None
    past: dict[str, Any] = field(default_factory=dict)  # the settings and trials of --start-from
    trusted: bool = False  # whether --trust was given
    shared: Shared | None = None  # `material`, once it has been packed for trials on this machine
