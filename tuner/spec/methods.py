"""The searchers and the schedulers, a row each: all that other files know of one.

A new one is a class in `tuner/tuning/searchers/` or `tuner/core/rules/`, and a row here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any


@dataclass(frozen=True)
class MethodRow:
    home: str  # its class, MODULE.CLASS in `tuner.tuning.searchers`, or its rule's in `tuner.core.rules`
    about: str  # what it does, for a user who does not know it
    _: KW_ONLY
    several: bool = False  # works with several metrics; a searcher, with constraints too
    needs_number: bool = False  # needs the number of trials, also if a budget limits the search
    in_ray: tuple[str, ...] = ()  # the names of its counterparts in Ray: importing some of them needs other libraries


@dataclass(frozen=True, kw_only=True)
class SearcherRow(MethodRow):
    learns: bool = True  # what it proposes depends on the results of the search's trials
    learns_past: bool = False  # it also learns from the trials of --start-from
    draws_prior: bool = False  # it draws settings around the guess of --prior
    waits: bool = False  # it proposes nothing until the first half of its trials has ended
    scheduler: str = ""  # the only scheduler that works with it, and works with no other searcher
    refuses: tuple[str, ...] = ("sample_from", "grid_search")  # the kinds of domains that it cannot propose
    packages: tuple[str, ...] = ()  # what must be installed; `extra` is tuner's extra that has it
    extra: str = ""


@dataclass(frozen=True)
class SchedulerRow(MethodRow):
    plan: str  # what the plan says of it; `schedule` in tuner/tuning/output/console.py fills in the braces
    _: KW_ONLY
    pauses: bool = False  # pauses trials, which may go on later
    prunes: bool = True
    changes_settings: bool = False  # of trials that train, so that no searcher can learn from these
    has_rungs: bool = False  # compares trials at `Experiment.rungs`
    has_bands: bool = False  # compares trials in HyperBand's brackets, which are built for --max-epochs
    uses: tuple[str, ...] = ()  # the options, or fields of a space, that say how it compares trials


AT_RUNGS, IN_BANDS = ("max_epochs", "grace_period", "reduction_factor"), ("max_epochs", "reduction_factor")
NOT_IN_LIBRARIES = ("sample_from", "grid_search", "normal")
BOHB = "compares trials in brackets and learns from them what to try next"
SEARCHERS = {
    "random": SearcherRow("sampling.RandomSearcher", "draws each setting at random", learns=False, draws_prior=True,
        several=True, refuses=(), in_ray=("NoneType", "BasicVariantGenerator")),
    "grid": SearcherRow("sampling.GridSearcher", "tries the points of a grid", learns=False, several=True,
        refuses=("sample_from", "normal")),
    "refine": SearcherRow("sampling.RefineSearcher", "tries neighbours of the best of random settings", waits=True,
        needs_number=True),
    "forest": SearcherRow("forest.ForestSearcher", "learns from earlier trials what to try next", learns_past=True,
        draws_prior=True, several=True),
    "hyperopt": SearcherRow("libraries.HyperOpt", "learns by HyperOpt's TPE", learns_past=True,
        in_ray=("HyperOptSearch",)),
    "bohb": SearcherRow("libraries.BOHB", BOHB, learns_past=True, scheduler="bohb", refuses=NOT_IN_LIBRARIES,
        extra="bohb", packages=("hpbandster", "ConfigSpace"), in_ray=("TuneBOHB",)),
    "optuna": SearcherRow("libraries.Optuna", "learns by Optuna's TPE", learns_past=True, several=True,
        refuses=NOT_IN_LIBRARIES, extra="optuna", packages=("optuna",), in_ray=("OptunaSearch",)),
    "nsga2": SearcherRow("libraries.NSGA2", "learns by Optuna's NSGA-II", learns_past=True, several=True,
        refuses=NOT_IN_LIBRARIES, extra="optuna", packages=("optuna",)),
}  # fmt: skip
SCHEDULERS = {
    "asha": SchedulerRow("own_length.OwnLength", "stops the worse trials early",
        "compares trials {after} and continues the best 1/{e.reduction_factor:g}; {ends}",
        has_rungs=True, several=True, uses=AT_RUNGS, in_ray=("AsyncHyperBandScheduler",)),
    "asha-promotion": SchedulerRow("own_length.OwnLength", "pauses the worse trials early and continues the best",
        "pauses trials {after} and promotes the best 1/{e.reduction_factor:g}; {ends}",
        pauses=True, has_rungs=True, several=True, uses=AT_RUNGS),
    "bohb": SchedulerRow("hyperband.HyperBand", BOHB,
        "brackets as in hyperband, where the best 1/{e.reduction_factor:g} continue; a model proposes the settings",
        pauses=True, has_bands=True, uses=IN_BANDS, in_ray=("HyperBandForBOHB",)),
    "hyperband": SchedulerRow("hyperband.HyperBand", "compares trials in brackets",
        "trials of a bracket wait for each other, then the best 1/{e.reduction_factor:g} continue; the first "
        "{sizes[0]} of every {band} trials are never stopped",
        pauses=True, has_bands=True, uses=IN_BANDS, in_ray=("HyperBandScheduler",)),
    "median": SchedulerRow("median.Median", "stops the trials that are worse than the median",
        "from epoch {e.grace_period} on, stops a trial that is worse than the other trials' median",
        uses=("grace_period",), in_ray=("MedianStoppingRule",)),
    "pbt": SchedulerRow("rule.Rule", "changes parameters while trials train",  # tuner/tuning/population.py decides
        "every {interval} epochs, each trial of the worst quarter copies one of the best quarter, with changed "
        "parameters", prunes=False, changes_settings=True, needs_number=True,
        uses=("perturbation_interval", "mutable"), in_ray=("PopulationBasedTraining",)),
    "fifo": SchedulerRow("rule.Rule", "trains every trial to the end", "{trains}", prunes=False, several=True,
        in_ray=("NoneType", "FIFOScheduler")),
}  # fmt: skip


def _work_together(searcher: SearcherRow, scheduler: str) -> bool:
    if searcher.scheduler or scheduler in [row.scheduler for row in SEARCHERS.values()]:
        return scheduler == searcher.scheduler
    row = SCHEDULERS[scheduler]  # a paused trial may never end
    return not (searcher.learns and row.changes_settings) and not (searcher.waits and row.pauses)


def _listed(names: Iterable[str], word: str = "and") -> str:
    *first, last = names
    return f" {word} ".join(filter(None, (", ".join(first), last)))


# Searcher -> the schedulers that work with it.
PAIRS = {name: tuple(each for each in SCHEDULERS if _work_together(row, each)) for name, row in SEARCHERS.items()}
ROWS: list[tuple[str, MethodRow]] = [*SEARCHERS.items(), *SCHEDULERS.items()]
NEED_NUMBER = [name for name, row in ROWS if row.needs_number]
NAMES = {  # what `$name` in the help text of an option stands for
    "counted": _listed(NEED_NUMBER),
    "learning": _listed(name for name, row in SEARCHERS.items() if row.learns_past),
    "drawing": _listed(name for name, row in SEARCHERS.items() if row.draws_prior),
    "graced": _listed((name for name, row in SCHEDULERS.items() if "grace_period" in row.uses), "or"),
}


def class_of(row: MethodRow, package: str) -> Any:
    """Returns the class of a row, which is in this package."""
    module, _, name = row.home.partition(".")
    return getattr(importlib.import_module(f"{package}.{module}"), name)
