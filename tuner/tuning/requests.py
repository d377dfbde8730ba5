"""What a caller asks of a search, and the checked request that a search runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tuner.record.events import Event
from tuner.spec.experiment import Experiment, Options, Table, values_of
from tuner.spec.resources import Resources
from tuner.spec.spaces import LoadedSpace

if TYPE_CHECKING:
    from tuner.training.data import Splits


@dataclass
class SearchCall:
    """What a command line or a call of `tuner.search` asks for.

    Attributes:
        given: the options that the caller gave, by name; they take precedence over those of the space or of a resume.
        space: the space as an object of the calling program; None if `given` or the resumed experiment names it.
        resume, trust, preflight, dry_run, table: as in `tuner.search`.
        command: the words of the command, for experiment.json.
        begun: the experiment once its options are checked; `run_search` sets it.
    """

    given: dict[str, Any]
    space: LoadedSpace | None = None
    resume: str = ""
    trust: bool = False
    preflight: bool = True
    dry_run: bool = False
    table: Table = "fit"
    command: list[str] = field(default_factory=list)
    begun: Experiment | None = None


@dataclass(frozen=True)
class Request:
    """A checked request to run a search. Its data, a cluster's resources and the preflight are checked later."""

    experiment: Experiment
    loaded_space: LoadedSpace
    facts: dict[str, Any]
    history: list[Event]
    resources: Resources | None  # None if they depend on a cluster that the driver has not joined
    wandb_mode: str
    splits: Splits | None = None


def options_over(default: Options, given: Mapping[str, Any]) -> Options:
    """Returns the options that a caller gave, and `default` for the others.

    The points and limits that the caller gave are added to those of a space; a resumed experiment keeps its own.
    """
    added = () if isinstance(default, Experiment) else ("point", "stop")
    more = {name: (*getattr(default, name), *given[name]) for name in added if name in given}
    return Options(**{**values_of(default), **given, **more})
