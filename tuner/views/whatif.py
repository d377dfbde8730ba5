"""What if: applies other stopping rules to the recorded reports, in their recorded order. Pure: no files, no clock.

The curve of a pruned trial ends where it was pruned. If other rules would have trained it further, its later values
are unknown. The record is therefore replayed three times. In the first replay such a trial reports nothing more; in
the second it reports the best value of all trials at every later epoch; in the third it reports the worst. The result
is unknown wherever the three replays differ.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from tuner.errors import RequestError
from tuner.record.records import TrialRecord, finite, kept, sign_of
from tuner.record.results import ExperimentRecord
from tuner.spec.experiment import Experiment
from tuner.spec.rules import HyperBand, Judged, Rule, rule_of

Replayed = Literal["asha", "median", "hyperband", "fifo"]
REPLAYED: tuple[str, ...] = get_args(Replayed)
MOST_BRACKETS = 8
Beyond = Literal["missing", "best", "worst"]
Outcome = Literal["stopped", "ended", "unknown"]


@dataclass(frozen=True)
class Fate:
    """The outcome of one trial in a replay under the requested rules.

    `outcome` has three values. "stopped": the rules stop the trial after `epochs` epochs because of `cutoff`. "ended":
    it ends as in the search. "unknown": it would train beyond the end of its record. `recorded` is the number of epochs
    trained in the search, `epochs` the number trained in the replay.
    """

    trial: str
    recorded: int
    outcome: Outcome
    epochs: int
    rung: float | None = None
    value: float | None = None
    cutoff: float | None = None


@dataclass(frozen=True)
class Range:
    """The smallest and the largest count over the three replays."""

    least: int
    most: int


@dataclass(frozen=True)
class WhatIf:
    """The result of replaying a whole search.

    `best_lost`: whether the winner would have been stopped before its best epoch; None if unknown. `exact`: no trial's
    outcome is unknown. `same`: the rules are those of the search. `stopped_recorded`: the number of stops in the
    record. `reproduced`: how many of them a replay under the search's own rules repeats, at the same epoch and cutoff;
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


class _Arrival(NamedTuple):
    order: int
    trial: int
    epoch: int
    value: float | None  # smaller is better; None if the trial diverged


def what_if(
    record: ExperimentRecord, scheduler: str, grace_period: int, reduction_factor: float, brackets: int = 1
) -> WhatIf:
    """Replays a search under other stopping rules.

    Raises:
        RequestError: a value is one that a search refuses too, the scheduler cannot be replayed, or there are more
            brackets than rungs.
    """
    rules = checked_rules(record.experiment, scheduler, grace_period, reduction_factor, brackets)
    runs = [_Simulation(record, rules, brackets, beyond).fates() for beyond in ("missing", "best", "worst")]
    fates = runs[0]
    winner = record.best()
    lost = {_lost(fates, winner[0].id, winner[1].epoch) for fates in runs} if winner else {False}
    epochs = [sum(fate.epochs for fate in run) for run in runs]
    stopped = [sum(fate.outcome == "stopped" for fate in run) for run in runs]
    unknown = sum(fate.outcome == "unknown" for fate in fates)
    own = record.experiment
    choices = (scheduler, grace_period, reduction_factor, brackets)
    return WhatIf(
        scheduler=scheduler,
        grace_period=grace_period,
        reduction_factor=reduction_factor,
        brackets=brackets,
        max_epochs=own.max_epochs,
        same=not record.facts.get("foreign")
        and choices == (own.scheduler, own.grace_period, own.reduction_factor, getattr(own, "brackets", 1)),
        exact=unknown == 0,
        best=winner[0].id if winner else "",
        best_lost=lost.pop() if len(lost) == 1 else None,
        epochs_recorded=sum(_epochs(trial) for trial in record.trials),
        epochs=Range(min(epochs), max(epochs)),
        stopped_recorded=len(_stops(record)),
        reproduced=reproduced(record),
        stopped=Range(min(stopped), max(stopped)),
        fates=fates,
        notes=_notes(record, scheduler, unknown),
    )


def checked_rules(
    own: Experiment, scheduler: str, grace_period: int, reduction_factor: float, brackets: int
) -> Experiment:
    """Returns the rules as an `Experiment`, which checks them as it does for a search.

    Raises:
        RequestError: a rule is wrong, or the scheduler cannot be replayed.
    """
    if scheduler not in REPLAYED:
        raise RequestError(f"scheduler {scheduler}: a replay knows {', '.join(REPLAYED)}")
    changed = {"scheduler": scheduler, "grace_period": grace_period, "reduction_factor": reduction_factor}
    rules = replace(own, searcher="random", **changed)  # type: ignore[arg-type]  # the searcher has no part in it
    most = len(rules.rungs()) if scheduler == "asha" else 1
    if not 1 <= brackets <= min(most, MOST_BRACKETS):
        raise RequestError(f"brackets {brackets}: must be 1..{min(most, MOST_BRACKETS)}, one a rung at most")
    return rules


@kept
def reproduced(record: ExperimentRecord) -> int | None:
    """Counts the recorded stops that a replay under the search's own rules repeats.

    None if the search's scheduler cannot be replayed or its rules are not recorded.
    """
    own = record.experiment
    if own.scheduler not in REPLAYED or record.facts.get("foreign"):
        return None
    fates = _Simulation(record, own, getattr(own, "brackets", 1), "missing").fates()
    stops = {fate.trial: (fate.epochs, fate.cutoff) for fate in fates if fate.outcome == "stopped"}
    return sum(stops.get(trial) == stop for trial, stop in _stops(record).items())


def _stops(record: ExperimentRecord) -> dict[str, tuple[int, float | None]]:
    """Returns the epoch and cutoff of each recorded stop, by trial.

    Trials that diverged are left out, because no rule stopped them.
    """
    ends = {t.id: t.decisions[-1] for t in record.trials if t.status == "pruned" and t.decisions}
    return {trial: (end.epoch, end.cutoff) for trial, end in ends.items() if end.action == "stop" and end.rung}


def _notes(record: ExperimentRecord, scheduler: str, unknown: int) -> list[str]:
    notes = []
    if unknown:
        those = "1 trial" if unknown == 1 else f"{unknown} trials"
        notes.append(
            f"{those} would train beyond the end of the record, where the values are unknown. The ranges span three "
            "cases: these trials report nothing more, the best value of the search, or the worst."
        )
    if scheduler == "hyperband":
        notes.append("HyperBand pauses trials, which frees places; which trials would have started there is unknown.")
    if record.experiment.searcher not in ("random", "grid"):
        notes.append(f"The replay keeps the recorded parameters; {record.experiment.searcher} might propose others.")
    if record.experiment.scheduler == "pbt":
        notes.append("Population based training changed parameters during training; the replay keeps these curves.")
    if record.facts.get("foreign"):
        notes.append("The folder does not record why trials ended; pruned trials count as ended by themselves.")
    return notes


def _epochs(trial: TrialRecord) -> int:
    return max((report.epoch for report in trial.reports), default=0)


def epochs_beyond(trial: TrialRecord, experiment: Experiment) -> int:
    """Counts the epochs up to `max_epochs` that the search did not train.

    The count is 0 for a trial that completed or failed, or that has no reports.
    """
    begun = trial.reports and trial.status not in ("completed", "failed")
    return max(0, experiment.max_epochs - _epochs(trial)) if begun else 0


def _lost(fates: list[Fate], winner: str, epoch: int) -> bool:
    return any(fate.trial == winner and fate.outcome == "stopped" and fate.epochs < epoch for fate in fates)


class _Simulation:
    """Replays all reports once, in order of arrival. A trial is identified by its index in the record."""

    def __init__(self, record: ExperimentRecord, rules: Experiment, brackets: int, beyond: Beyond) -> None:
        self._trials, self._experiment = record.trials, record.experiment
        self._most = record.experiment.max_epochs
        self._sign = float(sign_of(record.experiment.mode))
        self._rule: Rule = rule_of(rules, brackets)
        self._beyond = beyond
        self._extremes = _extremes(record, self._sign)
        self._ended: dict[int, Fate] = {}
        self._last: dict[int, _Arrival] = {}
        self._paused: set[int] = set()
        self._waiting: dict[int, deque[_Arrival]] = defaultdict(deque)  # later reports of paused trials

    def fates(self) -> list[Fate]:
        """Replays all reports and returns one outcome per trial, in the order of the record."""
        arrivals = sorted(arrival for place in range(len(self._trials)) for arrival in self._arrivals(place))
        added = deque(sorted((trial.order, place) for place, trial in enumerate(self._trials)))
        for arrival in arrivals:
            while added and added[0][0] <= arrival.order:
                self._rule.added(added.popleft()[1])
            self._take(arrival)
        return [self._ended.get(place) or self._open(place) for place in range(len(self._trials))]

    def _take(self, arrival: _Arrival) -> None:
        """Judges a report, and then the reports of every trial that it resumes.

        The report of a trial that has ended is ignored; that of a paused trial is kept until the trial resumes.
        """
        queue = deque([arrival])
        while queue:
            each = queue.popleft()
            if each.trial in self._ended:
                continue
            if each.trial in self._paused:
                self._waiting[each.trial].append(each)
                continue
            for freed in self._judge(each):
                queue.extend(self._waiting.pop(freed, ()))

    def _judge(self, arrival: _Arrival) -> list[int]:
        """Judges one report; returns the paused trials that resume because of it."""
        trial = self._trials[arrival.trial]
        by_itself = trial.status in ("completed", "failed") and arrival.epoch == _epochs(trial)
        over = by_itself or arrival.epoch >= self._most
        self._last[arrival.trial] = arrival
        if arrival.value is None:
            return self._end(arrival, Fate(trial.id, _epochs(trial), "ended", arrival.epoch))
        judged = Judged() if arrival.epoch >= self._most else self._rule.judge(*arrival[1:3], arrival.value)
        if judged.action == "stop":
            return self._end(arrival, self._stopped(arrival, judged))
        if over:
            return self._end(arrival, Fate(trial.id, _epochs(trial), "ended", arrival.epoch))
        if judged.action == "pause":
            self._paused.add(arrival.trial)
            assert isinstance(self._rule, HyperBand)  # no other rule pauses
            return self._settle(self._rule.settled(arrival.trial))
        return []

    def _end(self, arrival: _Arrival, fate: Fate) -> list[int]:
        self._ended[arrival.trial] = fate
        value = None if self._trials[arrival.trial].status == "failed" else arrival.value
        return self._settle(self._rule.ended(arrival.trial, arrival.epoch, value))

    def _settle(self, decided: list[tuple[int, Judged]]) -> list[int]:
        freed = []
        for place, judged in decided:
            self._paused.discard(place)
            if judged.action == "stop":
                self._ended[place] = self._stopped(self._last[place], judged)
            else:
                freed.append(place)
        return freed

    def _stopped(self, arrival: _Arrival, judged: Judged) -> Fate:
        trial, value = self._trials[arrival.trial], arrival.value
        assert value is not None
        cutoff = None if judged.cutoff is None else self._sign * judged.cutoff
        own = self._sign * value
        return Fate(trial.id, _epochs(trial), "stopped", arrival.epoch, judged.rung, own, cutoff)

    def _open(self, place: int) -> Fate:
        """Returns the outcome of a trial that no rule stopped: ended if it ended by itself, otherwise unknown."""
        trial, last = self._trials[place], self._last.get(place)
        ended = trial.status in ("completed", "failed") or last is None
        return Fate(trial.id, _epochs(trial), "ended" if ended else "unknown", last.epoch if last else 0)

    def _arrivals(self, place: int) -> list[_Arrival]:
        trial, metric = self._trials[place], self._experiment.metric
        arrivals = []
        for report in sorted((*trial.repeated, *trial.reports), key=lambda report: report.order):
            value = finite(report.metrics.get(metric))
            own = None if value is None else self._sign * value
            arrivals.append(_Arrival(report.order, place, report.epoch, own))
        if not arrivals or arrivals[-1].value is None:
            return arrivals
        last = arrivals[-1]
        return arrivals + [last._replace(epoch=epoch, value=value) for epoch, value in self._beyond_of(trial)]

    def _beyond_of(self, trial: TrialRecord) -> tuple[tuple[int, float], ...]:
        """Returns the assumed epochs and values after the end of a pruned trial's record."""
        if self._beyond == "missing":
            return ()
        value = self._extremes[0 if self._beyond == "best" else 1]
        first = _epochs(trial) + 1
        return tuple((epoch, value) for epoch in range(first, first + epochs_beyond(trial, self._experiment)))


def _extremes(record: ExperimentRecord, sign: float) -> tuple[float, float]:
    """Returns the best and the worst finite value of all trials; smaller is better."""
    reported = (report.metrics.get(record.experiment.metric) for trial in record.trials for report in trial.reports)
    values = [sign * value for each in reported if (value := finite(each)) is not None]
    return (min(values), max(values)) if values else (0.0, 0.0)
