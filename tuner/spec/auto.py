"""Chooses the searcher, the scheduler, the grace period and the reduction factor where the options say `auto`.

A search saves the values that `choose` returns. A resume uses the saved values, even if `choose` has changed since.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.spec.experiment import AUTO, Experiment, Options, values_of
from tuner.spec.methods import PAIRS, ROWS, SCHEDULERS

FEWEST_TO_PRUNE = 4  # trials; asha would stop one of two after a single comparison
FEWEST_TO_PROMOTE = 20  # trials; with 10, asha-promotion pauses too many: its mean regret is .040, that of asha .026
# Number of trials. Mean regrets on LCBench with 4 workers, of random and of forest: .374 and .375 with 20 trials, .323
# and .313 with 30, .278 and .248 with 40, .240 and .181 with 60.
FEWEST_TO_LEARN = 40
FEWEST_TO_IMPROVE = 20  # number of trials, with several metrics or constraints
CHOSEN = ("searcher", "scheduler", "grace_period", "reduction_factor")  # options whose `auto` is replaced here
FACTOR = 2.0
# Share of a training's epochs before the first rung, at least 1 epoch. In recorded trainings of 52 epochs, a grace
# period of 2 has lower regret than 1, 3 or 4: the values of epoch 1 hardly show which trials end well.
GRACE = 1 / 25


@dataclass(frozen=True, kw_only=True)
class SpaceTraits:
    """Properties of a space; the values that replace `auto` depend on them."""

    saves_checkpoints: bool  # whether trials save checkpoints, from which paused trials can continue
    searchers: tuple[str, ...] = ("random",)  # those that can propose every parameter
    grid_points: int = 1  # trials that searcher random runs for each of --num-samples; above 1 with `tune.grid_search`
    grid_size: int | None = None  # number of settings of the searcher grid; None if it cannot propose every parameter


def choose(options: Options, traits: SpaceTraits) -> tuple[Experiment, str]:
    """Returns the options of a new search with a suitable value for each `auto`, and the reasons in one line.

    The reasons are empty if the user named both the searcher and the scheduler. Raises RequestError if the values do
    not work together.
    """
    scheduler, about_scheduler = _scheduler(options, traits)
    searcher, about_searcher = _searcher(options, traits, scheduler)
    parts = [f"searcher {_meaning(searcher)}{about_searcher}"] if options.searcher == AUTO else []
    parts += [f"scheduler {_meaning(scheduler)}{about_scheduler}"] if options.scheduler == AUTO else []
    factor = FACTOR if options.reduction_factor == AUTO else options.reduction_factor
    auto_grace = AUTO == options.grace_period == options.scheduler and scheduler != "fifo"
    grace = options.grace_period
    if grace == AUTO:
        grace = suited_grace(options.max_epochs) if auto_grace else 1
        moves = ", which shrinks if earlier epochs order the trials alike" * (
            options.brackets == 1 and not options.aim.several
        )
        parts += [f"grace period {grace}, {GRACE:.0%} of the epochs{moves}"][: grace - 1]
    chosen = {"searcher": searcher, "scheduler": scheduler, "grace_period": grace, "reduction_factor": factor}
    return Experiment(**(values_of(options) | chosen), auto_grace=auto_grace), "; ".join(parts)


def suited_grace(epochs: int) -> int:
    """Returns the grace period, in epochs, for trials of `epochs` epochs."""
    return max(1, int(GRACE * epochs))


def _meaning(name: str) -> str:
    return f"{name} ({dict(ROWS)[name].about})"


def _num_trials(options: Options, traits: SpaceTraits) -> int:
    if options.searcher == "grid":
        return min(options.most_samples, traits.grid_size or options.most_samples)
    return options.most_samples * (traits.grid_points if options.searcher in (AUTO, "random") else 1)


def _scheduler(options: Options, traits: SpaceTraits) -> tuple[str, str]:
    if options.scheduler != AUTO:
        return options.scheduler, ""
    if options.searcher != AUTO and len(PAIRS[options.searcher]) == 1:
        return PAIRS[options.searcher][0], f", the only one that works with searcher {options.searcher}"
    if options.brackets > 1:
        return "asha-promotion", ", the only one with --brackets"
    if options.max_epochs == 1 or (options.grace_period != AUTO and options.grace_period >= options.max_epochs):
        return "fifo", ", because no rung lies before the last epoch"
    if _num_trials(options, traits) < FEWEST_TO_PRUNE:
        return "fifo", f", because {_meaning('asha')} needs {FEWEST_TO_PRUNE} trials or more"
    if options.searcher != AUTO and "asha-promotion" not in PAIRS[options.searcher]:
        return "asha", f", because asha-promotion does not work with searcher {options.searcher}"
    if _num_trials(options, traits) < FEWEST_TO_PROMOTE:
        return "asha", f", because {_meaning('asha-promotion')} needs {FEWEST_TO_PROMOTE} trials or more"
    if not traits.saves_checkpoints:
        return "asha", ", because the trials save no checkpoints, from which asha-promotion continues them"
    number = (
        f"there are {FEWEST_TO_PROMOTE} trials or more" if options.num_samples else "only a budget limits the trials"
    )
    return "asha-promotion", f", because {number} and they save checkpoints"


def _searcher(options: Options, traits: SpaceTraits, scheduler: str) -> tuple[str, str]:
    if options.searcher != AUTO:
        return options.searcher, ""
    if len(works := [name for name, schedulers in PAIRS.items() if scheduler in schedulers]) == 1:
        return works[0], f", the only one that works with scheduler {scheduler}"
    least = FEWEST_TO_LEARN if options.aim.simple else FEWEST_TO_IMPROVE
    if not SCHEDULERS[scheduler].has_rungs and options.aim.simple:
        return "random", f", because forest was not measured with {scheduler}"
    if "forest" not in traits.searchers:
        return "random", ", because forest cannot propose every parameter of this space"
    if options.start_from:
        return "forest", ", because it learns from past trials"
    if options.most_samples < least:
        return "random", f", because {_meaning('forest')} needs --num-samples {least} or more"
    return "forest", f", because --num-samples is {least} or more" if options.num_samples else ""


def as_before(options: Options, earlier: Experiment) -> Experiment:
    """Returns a resumed search's options, with the `earlier` value for each `auto`; raises the errors of `choose`."""
    values = values_of(options)
    chosen = {name: getattr(earlier, name) for name in CHOSEN if values[name] == AUTO}
    return Experiment(**(values | chosen), auto_grace=earlier.auto_grace)
