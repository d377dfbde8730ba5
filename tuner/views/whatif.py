"""What if a search had used other stopping rules?

The curve of a pruned trial ends where it was pruned. If other rules would have trained it further, its later values
are unknown. The record is therefore replayed three times (`tuner.views.simulation`). In the first replay such a trial
reports nothing more. In the second, it reports the best value of the whole search at every later epoch; in the third,
the worst. A result is unknown, or a range, wherever the three replays differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from tuner.errors import RequestError
from tuner.record.records import kept
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.spec.experiment import Experiment
from tuner.views.simulation import Fate, Simulation, epochs_beyond

Replayed = Literal["asha", "asha-promotion", "median", "hyperband", "fifo"]
REPLAYED: tuple[str, ...] = get_args(Replayed)
MOST_BRACKETS = 8
MOST_REPORTS = 30_000  # of one replay for report.html's table; 10,000 take 0.25 s


@dataclass(frozen=True)
class Range:
    """The smallest and the largest number of epochs, or of stopped trials, over the three replays."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True)
class WhatIf:
    """The result of replaying a whole search.

    `best_lost`: whether the winner would have been stopped before its best epoch; None if unknown. `exact`: no trial's
    outcome is unknown. `same`: the rules are those of the search. `stopped_recorded`: the number of recorded stops by
    a rule. `reproduced`: how many of them a replay under the search's own rules repeats, at the same epoch and cutoff;
    None if the search's rules cannot be replayed. `notes` say which parts of the result are uncertain and why.
    """

    scheduler: str
    grace_period: int
    reduction_factor: float
    brackets: int
    max_epochs: int
    same: bool
    exact: bool
    best: str
    best_lost: bool | None
    epochs_recorded: int
    epochs: Range
    stopped_recorded: int
    reproduced: int | None
    stopped: Range
    fates: list[Fate]
    notes: list[str]


def what_if(
    record: ExperimentRecord, scheduler: str, grace_period: int, reduction_factor: float, brackets: int = 1
) -> WhatIf:
    """Replays a search under other stopping rules.

    Raises:
        RequestError: a search would refuse a value, too; the scheduler cannot be replayed; or `brackets` is out of
            range.
    """
    own, choices = record.rules, (scheduler, grace_period, reduction_factor, brackets)
    rules = checked_rules(own, *choices)
    same = choices == (own.scheduler, own.grace_period, own.reduction_factor, own.brackets)
    if same:  # the search's rungs moved while it ran; other rules know the length of its trials from the start
        rules, brackets = replace(record.experiment, searcher="random", brackets=1), record.experiment.brackets
    runs = [Simulation(record, rules, brackets, beyond).fates() for beyond in ("missing", "best", "worst")]
    best, last = (winner[0].id, winner[1].epoch) if (winner := record.best()) else ("", 0)
    lost = {any(f.trial == best and f.outcome == "stopped" and f.epochs < last for f in run) for run in runs}
    epochs = [sum(fate.epochs for fate in run) for run in runs]
    stopped = [sum(fate.outcome == "stopped" for fate in run) for run in runs]
    unknown = sum(fate.outcome == "unknown" for fate in runs[0])
    return WhatIf(
        scheduler=scheduler,
        grace_period=grace_period,
        reduction_factor=reduction_factor,
        brackets=brackets,
        max_epochs=own.max_epochs,
        same=same and not record.facts.get("foreign"),
        exact=unknown == 0,
        best=best,
        best_lost=lost.pop() if len(lost) == 1 else None,
        epochs_recorded=sum(trial.last_epoch for trial in record.trials),
        epochs=Range(min(epochs), max(epochs)),
        stopped_recorded=len(record.stats.stopped),
        reproduced=reproduced(record),
        stopped=Range(min(stopped), max(stopped)),
        fates=runs[0],
        notes=_notes(record, scheduler, unknown, knows_length=record.length > 0 and not same),
    )


def checked_rules(
    own: Experiment, scheduler: str, grace_period: int, reduction_factor: float, brackets: int
) -> Experiment:
    """Returns the rules as an `Experiment`, which checks them as it does for a search.

    Raises:
        RequestError: a rule is wrong, or the scheduler cannot be replayed.
    """
    if scheduler not in REPLAYED:
        raise RequestError(f"scheduler {scheduler}: cannot be replayed; a replay knows {', '.join(REPLAYED)}")
    if not 1 <= grace_period <= own.max_epochs:
        raise RequestError(f"grace period {grace_period}: must be 1..{own.max_epochs}, the epochs per trial; change it")
    changed = {"scheduler": scheduler, "grace_period": grace_period, "reduction_factor": reduction_factor}
    try:
        rules = replace(own, searcher="random", brackets=1, **changed)  # type: ignore[arg-type]  # any searcher
    except RequestError as error:  # the page has form fields instead of --options
        words = re.sub(r"--([a-z-]+)", lambda option: option[1].replace("-", " "), str(error))
        raise RequestError(words) from None
    has_brackets = scheduler in ("asha", "asha-promotion")
    most = min(len(rules.rungs()), MOST_BRACKETS) if has_brackets else 1
    most = max(most, own.brackets if scheduler == own.scheduler else 1)
    if not 1 <= brackets <= most:
        why = (
            "as many as there are rungs" if has_brackets else "because only asha and asha-promotion have more than one"
        )
        raise RequestError(f"brackets {brackets}: must be 1..{most}, {why}; change it")
    return rules


@kept
def reproduced(record: ExperimentRecord) -> int | None:
    """Counts the recorded stops that a replay under the search's own rules repeats.

    Returns None if the search's scheduler cannot be replayed or its rules are not recorded.
    """
    own = record.experiment
    if own.scheduler not in REPLAYED or record.facts.get("foreign"):
        return None
    rules = replace(own, scheduler="asha", brackets=1) if record.changed else own
    fates = Simulation(record, rules, own.brackets, "missing").fates()
    replayed = {(fate.trial, fate.epochs, fate.cutoff) for fate in fates if fate.outcome == "stopped"}
    ends = ((trial.id, trial.decisions[-1]) for trial in record.stats.stopped)
    return sum((trial, end.epoch, end.cutoff) in replayed for trial, end in ends)


def _notes(record: ExperimentRecord, scheduler: str, unknown: int, *, knows_length: bool) -> list[str]:
    notes = []
    if knows_length:
        notes.append(
            f"These rules know from the start that trials end by themselves after {record.length} epochs at most; the "
            "search learned it when a trial ended."
        )
    if unknown:
        notes.append(
            f"{counted(unknown, 'trial')} would train beyond the end of the record, where the values are "
            "unknown. The ranges span three cases: these trials report nothing more, the best value of the search, "
            "or the worst."
        )
    if scheduler in ("hyperband", "asha-promotion"):
        name = "HyperBand" if scheduler == "hyperband" else scheduler
        notes.append(f"{name} pauses trials, which frees places; which trials would have started there is unknown.")
    if record.experiment.searcher not in ("random", "grid"):
        notes.append(f"The replay keeps the recorded parameters; {record.experiment.searcher} might propose others.")
    if record.experiment.scheduler == "pbt":
        notes.append("Population based training changed parameters during training; the replay keeps these curves.")
    if record.facts.get("foreign"):
        notes.append("The folder does not record why trials ended; pruned trials count as ended by themselves.")
    return notes


class AlternativeRow(NamedTuple):
    """A row of report.html: what one set of rules stops, trains and saves, and whether it keeps the best trial.

    `saved` is the percentage (or range) of the recorded epochs that these rules save; negative if they train more.
    """

    scheduler: str
    grace_period: int | None
    reduction_factor: float | None
    stopped: Range
    epochs: Range
    saved: str
    best_trial: str  # kept, lost or unknown


def alternative_rows(record: ExperimentRecord) -> list[AlternativeRow]:
    """Returns one row per set of stopping rules, the search's own first if they are known and can be replayed.

    The list is empty if no trial has a finite value, or if a replay of the search would have more than MOST_REPORTS
    reports.
    """
    own = record.rules
    beyond = sum(epochs_beyond(trial, own) for trial in record.trials)
    if not record.stats.ranked or record.stats.num_reports + beyond > MOST_REPORTS:
        return []
    grace, factor = own.grace_period, own.reduction_factor
    first = [(own.scheduler, grace, factor)] if own.scheduler in REPLAYED and not record.facts.get("foreign") else []
    asha = [("asha", g, f) for f in dict.fromkeys((factor, 2.0, 3.0, 4.0)) for g in (grace, 2 * grace)]
    others = [("asha-promotion", grace, factor), ("median", grace, factor), ("hyperband", grace, 3.0)]
    rows = []
    for scheduler, period, share in dict.fromkeys([*first, *asha, *others, ("fifo", grace, factor)]):
        brackets = own.brackets if scheduler == own.scheduler else 1
        try:
            rows.append(_row(what_if(record, scheduler, period, share, brackets)))
        except RequestError:
            continue  # a search refuses these rules too, for example a grace period beyond the last epoch
    return rows


def _row(outcome: WhatIf) -> AlternativeRow:
    scheduler, recorded, epochs = outcome.scheduler, outcome.epochs_recorded, outcome.epochs
    has_rungs = scheduler in ("asha", "asha-promotion")
    saved = Range(*(round(100 * (1 - trained / recorded)) for trained in (epochs.most, epochs.least)))
    return AlternativeRow(
        scheduler + (" (the search's own)" if outcome.same else ""),
        outcome.grace_period if has_rungs or scheduler == "median" else None,
        outcome.reduction_factor if has_rungs or scheduler == "hyperband" else None,
        outcome.stopped,
        epochs,
        f"{saved} %",
        {True: "lost", False: "kept", None: "unknown"}[outcome.best_lost],
    )
