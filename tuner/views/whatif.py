"""What if a search had used other stopping rules? Replays its recorded reports in their order under any rules.

A pruned or unfinished trial's curve ends with its last report. If other rules would train it further, its later values
are unknown. The record is therefore replayed three times. In the first replay such a trial reports nothing more. In the
second, it reports the best value of the whole search at every later epoch; in the third, the worst. A result is
unknown, or a range, wherever the three replays differ.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from tuner.core.events import ENDED, RETURNED, TRAINED
from tuner.core.rules import rule_of
from tuner.core.rules.rule import Decisions, RuleDecision
from tuner.errors import RequestError
from tuner.record.columns import column
from tuner.record.records import TrialRecord, finite, kept
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.spec.experiment import Experiment
from tuner.spec.methods import PAIRS, SCHEDULERS, SEARCHERS
from tuner.spec.metrics import keeps_last

# Scheduler that can be replayed, whatever proposed the settings -> the options that it uses.
RULES = {name: SCHEDULERS[name] for name in PAIRS["random"] if not SCHEDULERS[name].changes_settings}
REPLAYED = {name: [*row.uses, *["brackets"] * row.has_rungs] for name, row in RULES.items()}
MOST_BRACKETS = 8
MAX_REPLAYED = 30_000  # maximum reports of one replay for report.html's table; 10,000 reports take 0.25 s


@dataclass(frozen=True)
class Range:
    """The smallest and the largest number of epochs, or of stopped trials, over the three replays."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True)
class WhatIf:
    """The result of replaying a whole search, without the trials of `--confirm`.

    `same`: the rules are the search's own. `exact`: no trial's outcome is unknown. `best_lost`: whether the winner
    would have been stopped before its best epoch; None if unknown. `stopped_recorded` counts the recorded stops by a
    rule; `reproduced` counts those that a replay of the search's own rules repeats at the same epoch and cutoff, and is
    None if these rules cannot be replayed. `notes` say which parts of the result are uncertain and why.
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
    """Replays a search under other stopping rules; raises RequestError for rules that a search or a replay refuses."""
    own, choices = record.rules, (scheduler, grace_period, reduction_factor, brackets)
    rules = _checked_rules(own, *choices)
    same = choices == (own.scheduler, own.grace_period, own.reduction_factor, own.brackets)
    if same:  # the replay moves the rungs as the search did; other rules know the trials' length from the start
        rules, brackets = record.experiment, record.experiment.brackets
    runs = [_Simulation(record, rules, brackets, beyond, same).fates() for beyond in ("missing", "best", "worst")]
    winner = record.best()
    if winner and winner[0].confirms:  # no rule judged the winner itself, but the trial whose setting it repeats
        original = next(trial for trial in record.searched if trial.id == winner[0].confirms)
        winner = (original, report) if (report := original.best(own.aim)) else None
    best, last = (winner[0].id, winner[1].epoch) if winner else ("", 0)
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
        epochs_recorded=sum(trial.last_epoch for trial in record.searched),
        epochs=Range(min(epochs), max(epochs)),
        stopped_recorded=len(record.stats.stopped),
        reproduced=reproduced(record),
        stopped=Range(min(stopped), max(stopped)),
        fates=runs[0],
        notes=_notes(record, scheduler, unknown, knows_length=record.length > 0 and not same),
    )


def _checked_rules(
    own: Experiment, scheduler: str, grace_period: int, reduction_factor: float, brackets: int
) -> Experiment:
    """Returns the rules as an `Experiment`, which checks them as it does for a search."""
    if scheduler not in REPLAYED or own.aim.several:
        known = "searches with one metric" if own.aim.several else ", ".join(REPLAYED)
        raise RequestError(f"scheduler {scheduler}: cannot be replayed; a replay knows {known}")
    if not 1 <= grace_period <= own.max_epochs:
        raise RequestError(f"grace period {grace_period}: must be 1..{own.max_epochs}, the epochs per trial; change it")
    changed = {"scheduler": scheduler, "grace_period": grace_period, "reduction_factor": reduction_factor}
    try:
        rules = replace(own, searcher="random", brackets=1, auto_grace=False, **changed)  # type: ignore[arg-type]  # any searcher
    except RequestError as error:  # the page has form fields, so its error text names no --options
        words = re.sub(r"--([a-z-]+)", lambda option: option[1].replace("-", " "), str(error))
        raise RequestError(words) from None
    most, why = 1, "because only asha and asha-promotion have more than one"
    if "brackets" in REPLAYED[scheduler]:
        most, why = min(len(rules.rungs()), MOST_BRACKETS), "as many as there are rungs"
    most = max(most, own.brackets if scheduler == own.scheduler else 1)
    if not 1 <= brackets <= most:
        raise RequestError(f"brackets {brackets}: must be 1..{most}, {why}; change it")
    return rules


@kept
def reproduced(record: ExperimentRecord) -> int | None:
    """Counts the recorded stops that a replay of the search's own rules repeats; None if these cannot be replayed."""
    own = record.experiment
    if own.scheduler not in REPLAYED or record.facts.get("foreign") or own.aim.several:
        return None
    rules = replace(own, scheduler="asha", brackets=1) if record.changed else own
    fates = _Simulation(record, rules, own.brackets, "missing", not record.changed).fates()
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
    if early := {trial.id: epochs for trial in record.searched if (epochs := _completed_early(trial, record.rules))}:
        lengths, number = sorted({epoch for epochs in early.values() for epoch in epochs}), len(early)
        notes.append(
            f"{counted(number, 'trial')} completed after epoch {' or '.join(map(str, lengths))}, the search's last "
            "epoch before a resume with more epochs: no rules are asked about that report."
        )
    if unknown:
        notes.append(
            f"{counted(unknown, 'trial')} would train beyond the end of the record, where the values are "
            "unknown. The ranges span three cases: these trials report nothing more, the best value of the search, "
            "or the worst."
        )
    if SCHEDULERS[scheduler].pauses:
        name = "HyperBand" if scheduler == "hyperband" else scheduler
        notes.append(f"{name} pauses trials, which frees places; which trials would have started there is unknown.")
    if SEARCHERS[record.experiment.searcher].learns:
        notes.append(f"The replay keeps the recorded parameters; {record.experiment.searcher} might propose others.")
    if record.experiment.scheduler == "pbt":
        notes.append("Population based training changed parameters during training; the replay keeps these curves.")
    if record.facts.get("foreign"):
        notes.append("The folder does not record why trials ended; pruned trials count as ended by themselves.")
    return notes


@dataclass(frozen=True)
class AlternativeRow:
    """A row of report.html: how many trials some rules stop, how many epochs all trials then train, and the % saved."""

    scheduler: str = column(look="")
    grace_period: int | None = column()
    reduction_factor: float | None = column()
    stopped: Range = column("pruned")
    epochs: Range = column()
    saved: str = column("epochs saved")
    best_trial: str = column("", "kept, lost or unknown", "")


def alternative_rows(record: ExperimentRecord) -> list[AlternativeRow]:
    """Returns one row per set of stopping rules, the search's own first; none without values or beyond MAX_REPLAYED."""
    own = record.rules
    beyond = sum(_epochs_beyond(trial, own.max_epochs) for trial in record.searched)
    if own.aim.several or not record.stats.ranked or record.stats.num_reports + beyond > MAX_REPLAYED:
        return []
    grace, factor = own.grace_period, own.reduction_factor
    first = [(own.scheduler, grace, factor)] if own.scheduler in REPLAYED and not record.facts.get("foreign") else []
    asha = [("asha", g, f) for f in dict.fromkeys((factor, 2.0, 3.0, 4.0)) for g in (grace, 2 * grace)]
    others = [("asha-promotion", grace, factor), ("median", grace, factor), ("hyperband", grace, 3.0)]
    rows = []
    for scheduler, period, share in dict.fromkeys([*first, *asha, *others, ("fifo", grace, factor)]):
        brackets = own.brackets if scheduler == own.scheduler else 1
        try:
            outcome = what_if(record, scheduler, period, share, brackets)
        except RequestError:
            continue  # a search refuses these rules too, for example a grace period beyond the last epoch
        recorded, epochs = outcome.epochs_recorded, outcome.epochs
        saved = Range(*(round(100 * (1 - trained / recorded)) for trained in (epochs.most, epochs.least)))
        name = scheduler + (" (the search's own)" if outcome.same else "")
        grace_period = period if "grace_period" in REPLAYED[scheduler] else None
        reduction_factor = share if "reduction_factor" in REPLAYED[scheduler] else None
        fate = {True: "lost", False: "kept", None: "unknown"}[outcome.best_lost]
        rows.append(AlternativeRow(name, grace_period, reduction_factor, outcome.stopped, epochs, f"{saved} %", fate))
    return rows


OUTCOMES = "stopped: pruned by the rules; ended: as recorded; unknown: it would train beyond its recorded epochs"


@dataclass(frozen=True)
class Fate:
    """The outcome of one trial in a replay. "ended": it completes, fails or diverges unstopped, or has no report."""

    trial: str = column("", "", "trial")
    outcome: Literal["stopped", "ended", "unknown"] = column("", OUTCOMES, "")
    epochs: int = column()
    recorded: int = column("epochs recorded")
    saved: int | None = column("epochs saved")
    rung: float | None = column()
    value: float | None = column()
    cutoff: float | None = column()


def _completed_early(trial: TrialRecord, rules: Experiment) -> tuple[int, ...]:
    """Returns the epochs, below the present maximum, after which a trial completed: it trained all epochs then.

    A resume with more epochs continued it, unless it had no checkpoint.
    """
    ends = (d for d in trial.decisions if d.action == "stop" and d.rung is None and d.reason.startswith(TRAINED))
    return tuple(d.epoch for d in ends if d.epoch < max(trial.last_epoch, rules.max_epochs))


class _Arrival(NamedTuple):
    """A report or trial end, sorted by `order`; other trials may report between a trial's last report and its end."""

    order: int
    trial: int  # its index in the record
    epoch: int  # 0 for the end of a trial without reports
    value: float | None  # None if the trial diverged or has no report
    is_end: bool = False


def _epochs_beyond(trial: TrialRecord, max_epochs: int) -> int:
    """Counts the epochs from the end of an open or pruned trial's curve to `max_epochs`."""
    begun = trial.reports and trial.status not in ("completed", "failed")
    return max(0, max_epochs - trial.last_epoch) if begun else 0


class _Simulation:
    """Replays all reports once, in order of arrival. A trial is identified by its index in the record.

    After the curve of an open or pruned trial, it assumes no reports (`beyond` is "missing"), or one report per further
    epoch with the "best" or the "worst" value of all recorded reports.
    """

    def __init__(self, record: ExperimentRecord, rules: Experiment, brackets: int, beyond: str, is_own: bool) -> None:
        self._record, self._trials, self._rules, self._is_own = record, record.trials, rules, is_own
        self._recorded_most = record.rules.max_epochs
        self._most = max(self._recorded_most, *(trial.last_epoch for trial in record.trials), 1)
        self._rule = rule_of(rules, brackets)
        self._beyond = () if beyond == "missing" else (_extremes(record)[beyond == "worst"],)
        self._queue: deque[_Arrival] = deque()  # arrivals that the rule gets next
        self._last: dict[int, _Arrival] = {}  # trial -> its last report that the rule got
        self._paused: dict[int, list[_Arrival]] = {}  # paused trial -> its arrivals until it resumes
        self._ended: dict[int, RuleDecision | None] = {}  # ended trial -> the decision that stopped it, if one did
        self._finishing: set[int] = set()  # trials whose further reports the rule does not get
        self._early = [_completed_early(trial, record.rules) for trial in self._trials]
        self._resumed: set[int] = set()  # trials that completed early and that the next session continues
        self._leaving: set[int] = set()  # ended trials that the rule still counts, until their event `trial_ended`

    def fates(self) -> list[Fate]:
        indices = [index for index, trial in enumerate(self._trials) if not trial.confirms]
        added = deque(sorted((self._trials[index].order, index) for index in indices))
        extensions = deque(sorted(set(self._extensions(indices))))
        for arrival in sorted(arrival for index in indices for arrival in self._arrivals(index)):
            while extensions and extensions[0] <= arrival.order:
                extensions.popleft()
                self._extend()
            while added and added[0][0] <= arrival.order:
                self._rule.added(added.popleft()[1])
            self._queue.append(arrival)
            self._take()
        if self._record.state == "finished" and self._rules.scheduler == "asha-promotion":
            self._close()
        return [self._fate(index) for index in indices]

    def _extensions(self, indices: list[int]) -> Iterator[int]:
        """Yields the line of the first report after each resume with more epochs."""
        for length in {epoch for index in indices for epoch in self._early[index]}:
            ended = [self._trials[index].reports for index in indices if length in self._early[index]]
            if later := [report.order for reports in ended for report in reports if report.epoch > length]:
                yield min(later)

    def _extend(self) -> None:
        """Ends a session of the search, and begins the next one, which continues the trials that completed early."""
        last = {index: self._last[index].epoch for index in self._paused}
        if self._is_own and all(self._trials[index].last_epoch <= epoch for index, epoch in last.items()):
            while decided := self._rule.idle():  # else the session did not end, but was interrupted
                self._settle(decided)
        for index in self._resumed:
            self._rule.added(index)
        self._resumed.clear()

    def _take(self) -> None:
        """Passes the queued arrivals to the rule; an arrival of a paused trial is kept until the trial resumes."""
        while self._queue:
            each = self._queue.popleft()
            index, trial = each.trial, self._trials[each.trial]
            if index in self._paused:
                self._paused[index].append(each)
                if self._is_own and any(d.budget and d.action == "continue" for d in trial.decisions):
                    self._finishing.add(index)  # the search's budget continued this trial, not its rule
                    self._settle([*self._rule.ended(index, 0, None), (index, RuleDecision())])
                elif self._is_own and each.epoch <= trial.last_epoch:
                    # The recorded search decided on this paused trial because no other trial was left to run.
                    self._settle(self._rule.idle())
            elif each.epoch == 0:  # the end of a trial without reports
                self._settle(self._rule.ended(index, 0, None))
            elif each.is_end:
                if trial.status == "failed":
                    self._end(each, None)
                self._leave(index)
                self._learn(index)
            elif index not in self._ended:
                self._judge(each)

    def _judge(self, arrival: _Arrival) -> None:
        index, trial = arrival.trial, self._trials[arrival.trial]
        self._last[index] = arrival
        is_whole = arrival.epoch == trial.last_epoch and trial.status == "completed"
        if arrival.epoch in self._early[index] and not is_whole:  # a resume with more epochs continued it
            self._resumed.add(index)
            self._settle(self._rule.ended(index, arrival.epoch, arrival.value))
            return
        last_action = trial.decisions[-1].action if trial.decisions else ""
        # A trial ends by itself at its last report if it completed, or if it failed while it was paused there. Another
        # failed trial had continued and failed in a later epoch, unless its last report was refused.
        ends = trial.status == "completed" or (trial.status == "failed" and last_action == "pause")
        over = arrival.value is None or arrival.epoch >= self._most or (ends and arrival.epoch == trial.last_epoch)
        # The search did not ask its rule about a report with which a trial diverged, or that it knew to be the last.
        completes = over and trial.status == "completed" and last_action == "stop"
        judged = RuleDecision()
        is_asked = arrival.epoch < self._rules.max_epochs and index not in self._finishing
        if arrival.value is not None and is_asked and not completes:
            judged, others = self._rule.judge(index, arrival.epoch, arrival.value)
            if judged.action == "pause" and not over:
                self._paused[index] = []
            self._settle(others)
        if judged.action == "stop" or over:
            self._end(arrival, judged if judged.action == "stop" else None)

    def _close(self) -> None:
        """Ends the replay of a finished search; a trial that would train beyond its record counts as completed."""
        closed = set[int]()
        while True:
            beyond = self._last.keys() - self._ended.keys() - self._paused.keys() - closed
            closed |= beyond
            for index in beyond:
                self._settle(self._rule.ended(index, self._last[index].epoch, self._last[index].value))
            decided = self._rule.idle()
            if not decided:
                return
            self._settle(decided)
            self._take()

    def _learn(self, index: int) -> None:
        """If the rule did not know the trials' length, tells it the length of a trial that ended by itself."""
        trial, e = self._trials[index], self._record.experiment
        if self._rules.max_epochs > self._recorded_most and trial.reason == RETURNED and self._ended[index] is None:
            self._settle(self._rule.learn_length(trial.length(e.compared, e.wanted), self._paused.keys()))

    def _end(self, arrival: _Arrival, stopped: RuleDecision | None) -> None:
        """Ends a trial unless it has ended. If it ends at its last report, the rule counts it until `trial_ended`."""
        trial = self._trials[arrival.trial]
        if arrival.trial in self._ended:
            return
        self._ended[arrival.trial] = stopped
        self._leaving.add(arrival.trial)
        if trial.status not in ENDED or arrival.order != trial.reports[-1].order:
            self._leave(arrival.trial)

    def _leave(self, index: int) -> None:
        if index in self._leaving:
            self._leaving.discard(index)
            last = self._last[index]
            value = None if self._trials[index].status == "failed" else last.value
            self._settle(self._rule.ended(index, last.epoch, value))

    def _settle(self, decided: Decisions) -> None:
        """Stops paused trials, or queues the kept arrivals of paused trials that continue."""
        for index, judged in decided:
            arrivals = self._paused.pop(index, [])
            if judged.action == "stop":
                self._ended[index] = judged
            else:
                self._queue.extend(arrivals)

    def _fate(self, index: int) -> Fate:
        trial, last, stopped = self._trials[index], self._last.get(index), self._ended.get(index)
        epochs = last.epoch if last else 0
        if last and stopped:
            where = stopped.rung, last.value, stopped.cutoff
            return Fate(trial.id, "stopped", epochs, trial.last_epoch, trial.last_epoch - epochs, *where)
        ended = index in self._ended or last is None or trial.status in ("completed", "failed")
        saved = trial.last_epoch - epochs if ended else None
        return Fate(trial.id, "ended" if ended else "unknown", epochs, trial.last_epoch, saved, None, None, None)

    def _arrivals(self, index: int) -> list[_Arrival]:
        trial, own, arrivals = self._trials[index], self._record.experiment, list[_Arrival]()
        for report in sorted((*trial.repeated, *trial.reports), key=lambda report: report.order):
            # As in the search, the rule does not get an epoch that a trial repeats after a restart.
            if not arrivals or report.epoch > arrivals[-1].epoch:
                keeps = bool(arrivals) and keeps_last(own.compared, own.wanted, report.metrics)
                value = arrivals[-1].value if keeps else finite(own.compared.value(report.metrics))
                value = None if own.aim.broken_by(report.metrics, at="start") else value  # it ended the trial
                arrivals.append(_Arrival(report.order, index, report.epoch, value))
        if not arrivals:  # the trial failed before its first report, or has not reported yet
            return [_Arrival(trial.changed_at, index, 0, None, is_end=True)] if trial.status in ENDED else []
        last = arrivals[-1]
        if last.value is not None:
            beyond = range(last.epoch + 1, last.epoch + 1 + _epochs_beyond(trial, self._recorded_most))
            arrivals += [last._replace(epoch=epoch, value=value) for value in self._beyond for epoch in beyond]
        end = last._replace(order=max(trial.changed_at, last.order), is_end=True)
        return [*arrivals, end] if trial.status in ENDED else arrivals


def _extremes(record: ExperimentRecord) -> tuple[float, float]:
    """Returns the best and the worst finite value of all trials; 0, 0 without any."""
    compared = record.experiment.compared
    reported = (compared.value(report.metrics) for trial in record.searched for report in trial.reports)
    values = sorted(value for each in reported if (value := finite(each)) is not None)
    best, worst = (0, -1) if compared.mode == "min" else (-1, 0)
    return (values[best], values[worst]) if values else (0.0, 0.0)
