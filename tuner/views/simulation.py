"""Applies stopping rules to a search's recorded reports, in their recorded order. Pure: no files, no clock."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tuner.record.events import RETURNED
from tuner.record.records import TrialRecord, finite
from tuner.record.results import ExperimentRecord
from tuner.rules import rule_of
from tuner.rules.rule import Decisions, RuleDecision
from tuner.spec.experiment import Experiment

ENDED = ("completed", "pruned", "failed")
Beyond = Literal["missing", "best", "worst"]
Outcome = Literal["stopped", "ended", "unknown"]


@dataclass(frozen=True)
class Fate:
    """The outcome of one trial in a replay under the requested rules.

    `outcome` has three values. "stopped": the rules stop the trial after `epochs` epochs because of `cutoff`. "ended":
    it completes, fails or diverges before the rules stop it, or has no report. "unknown": the replay would train it
    beyond the end of its record. `recorded` is the number of epochs trained in the search, `epochs` that in the replay.
    """

    trial: str
    recorded: int
    outcome: Outcome
    epochs: int
    rung: float | None = None
    value: float | None = None
    cutoff: float | None = None


class _Arrival(NamedTuple):
    """A report in the order of the journal, or the event `trial_ended`: other trials may report between the two."""

    order: int
    trial: int
    epoch: int  # 0 for the end of a trial without reports
    value: float | None  # None if the trial diverged or has no report
    is_end: bool = False


def epochs_beyond(trial: TrialRecord, rules: Experiment) -> int:
    """Counts the epochs from the trial's last epoch to the rules' `max_epochs`.

    The count is 0 if the trial completed, failed or has no reports.
    """
    begun = trial.reports and trial.status not in ("completed", "failed")
    return max(0, rules.max_epochs - trial.last_epoch) if begun else 0


class Simulation:
    """Replays all reports once, in order of arrival. A trial is identified by its index in the record.

    Args:
        beyond: the reports to assume after a trial's last one, if it neither completed nor failed: none ("missing"), or
            one per epoch up to `max_epochs`, or to the length that the search's trials have. Each has the "best" or
            "worst" value of all recorded reports.
    """

    def __init__(self, record: ExperimentRecord, rules: Experiment, brackets: int, beyond: Beyond) -> None:
        self._record, self._trials, self._rules, self._recorded_rules = record, record.trials, rules, record.rules
        self._most = max(record.rules.max_epochs, *(trial.last_epoch for trial in record.trials), 1)
        self._rule = rule_of(rules, brackets)
        self._is_own = _same_rule(record.experiment, rules, brackets)
        self._beyond = () if beyond == "missing" else (_extremes(record)[beyond == "worst"],)
        self._queue: deque[_Arrival] = deque()  # arrivals that the rule gets next
        self._last: dict[int, _Arrival] = {}  # trial -> its last report that the rule got
        self._paused: set[int] = set()
        self._kept: dict[int, list[_Arrival]] = defaultdict(list)  # paused trial -> its arrivals until it resumes
        self._ended: dict[int, RuleDecision | None] = {}  # ended trial -> the decision that stopped it, if one did
        self._leaving: set[int] = set()  # ended trials; the rule counts each until its event `trial_ended`

    def fates(self) -> list[Fate]:
        """Replays all reports and returns one outcome per trial, in the order of the record."""
        places = range(len(self._trials))
        added = deque(sorted((trial.order, place) for place, trial in enumerate(self._trials)))
        for arrival in sorted(arrival for place in places for arrival in self._arrivals(place)):
            while added and added[0][0] <= arrival.order:
                self._rule.added(added.popleft()[1])
            self._queue.append(arrival)
            self._take()
        if self._record.state == "finished" and self._rules.scheduler == "asha-promotion":
            self._close()
        return [self._fate(place) for place in places]

    def _take(self) -> None:
        """Passes the queued arrivals to the rule; an arrival of a paused trial is kept until the trial resumes."""
        while self._queue:
            each = self._queue.popleft()
            place, trial = each.trial, self._trials[each.trial]
            if place in self._paused:
                self._kept[place].append(each)
                if self._is_own and each.epoch <= trial.last_epoch:
                    # The recorded search decided on this paused trial because no other trial was left to run.
                    self._settle(self._rule.idle())
            elif each.epoch == 0:  # the end of a trial without reports
                self._settle(self._rule.ended(place, 0, None))
            elif each.is_end:
                if trial.status == "failed":
                    self._end(each, None)
                self._leave(place)
                self._learn(place)
            elif place not in self._ended:
                self._judge(each)

    def _judge(self, arrival: _Arrival) -> None:
        """Passes one report to the rule."""
        place, trial = arrival.trial, self._trials[arrival.trial]
        self._last[place] = arrival
        last_action = trial.decisions[-1].action if trial.decisions else ""
        # A trial ends by itself at its last report if it completed, or failed in the pause after it. Any other trial
        # that failed had continued after its last report, and failed in a later epoch.
        ends = trial.status == "completed" or (trial.status == "failed" and last_action == "pause")
        over = arrival.value is None or arrival.epoch >= self._most or (ends and arrival.epoch == trial.last_epoch)
        # The search did not ask its rule about a report with which a trial diverged or ended by itself.
        completes = over and trial.status == "completed" and last_action == "stop"
        judged = RuleDecision()
        if arrival.value is not None and arrival.epoch < self._rules.max_epochs and not completes:
            judged, others = self._rule.judge(place, arrival.epoch, arrival.value)
            if judged.action == "pause" and not over:
                self._paused.add(place)
            self._settle(others)
        if judged.action == "stop" or over:
            self._end(arrival, judged if judged.action == "stop" else None)

    def _close(self) -> None:
        """Passes the end of a finished search to the rule: no trial runs, and no setting is left.

        A trial that would train beyond its record counts as completed.
        """
        closed = set[int]()
        while True:
            beyond = self._last.keys() - self._ended.keys() - self._paused - closed
            closed |= beyond
            for place in beyond:
                self._settle(self._rule.ended(place, self._last[place].epoch, self._last[place].value))
            decided = self._rule.idle()
            if not decided:
                return
            self._settle(decided)
            self._take()

    def _learn(self, place: int) -> None:
        """Tells rules that do not know it the length of a trial that ended by itself, if the search's rungs moved."""
        trial, unknown = self._trials[place], self._rules.max_epochs > self._recorded_rules.max_epochs
        if unknown and trial.reason == RETURNED and self._ended[place] is None:
            self._settle(self._rule.learn_length(trial.last_epoch, self._paused))

    def _end(self, arrival: _Arrival, stopped: RuleDecision | None) -> None:
        """Ends a trial, unless it has ended; the rule counts it until its recorded end if it ends as recorded."""
        trial = self._trials[arrival.trial]
        if arrival.trial in self._ended:
            return
        self._ended[arrival.trial] = stopped
        self._leaving.add(arrival.trial)
        if trial.status not in ENDED or arrival.order != trial.reports[-1].order:
            self._leave(arrival.trial)

    def _leave(self, place: int) -> None:
        """Removes an ended trial from the rule."""
        if place in self._leaving:
            self._leaving.discard(place)
            last = self._last[place]
            value = None if self._trials[place].status == "failed" else last.value
            self._settle(self._rule.ended(place, last.epoch, value))

    def _settle(self, decided: Decisions) -> None:
        """Stops paused trials, or queues what was kept of those that continue."""
        for place, judged in decided:
            self._paused.discard(place)
            if judged.action == "stop":
                self._ended[place] = judged
            else:
                self._queue.extend(self._kept.pop(place, ()))

    def _fate(self, place: int) -> Fate:
        """Returns a trial's outcome; "ended" if the trial was left open and completed, failed or never reported."""
        trial, last, stopped = self._trials[place], self._last.get(place), self._ended.get(place)
        epochs = last.epoch if last else 0
        if last and stopped:
            return Fate(trial.id, trial.last_epoch, "stopped", epochs, stopped.rung, last.value, stopped.cutoff)
        ended = place in self._ended or last is None or trial.status in ("completed", "failed")
        return Fate(trial.id, trial.last_epoch, "ended" if ended else "unknown", epochs)

    def _arrivals(self, place: int) -> list[_Arrival]:
        trial, metric = self._trials[place], self._record.experiment.metric
        arrivals: list[_Arrival] = []
        for report in sorted((*trial.repeated, *trial.reports), key=lambda report: report.order):
            # As in the search, the rule does not get an epoch that a trial repeats after a restart.
            if not arrivals or report.epoch > arrivals[-1].epoch:
                arrivals.append(_Arrival(report.order, place, report.epoch, finite(report.metrics.get(metric))))
        if not arrivals:  # the trial failed before its first report, or has not reported yet
            return [_Arrival(trial.changed_at, place, 0, None, is_end=True)] if trial.status in ENDED else []
        last = arrivals[-1]
        if last.value is not None:
            beyond = range(last.epoch + 1, last.epoch + 1 + epochs_beyond(trial, self._recorded_rules))
            arrivals += [last._replace(epoch=epoch, value=value) for value in self._beyond for epoch in beyond]
        end = last._replace(order=max(trial.changed_at, last.order), is_end=True)
        return [*arrivals, end] if trial.status in ENDED else arrivals


def _same_rule(own: Experiment, rules: Experiment, brackets: int) -> bool:
    """Whether a search used exactly these rules."""
    names = ("scheduler", "grace_period", "reduction_factor", "max_epochs", "mode")
    return brackets == own.brackets and all(getattr(own, name) == getattr(rules, name) for name in names)


def _extremes(record: ExperimentRecord) -> tuple[float, float]:
    """Returns the best and the worst finite value of all trials; 0, 0 without any."""
    reported = (report.metrics.get(record.experiment.metric) for trial in record.trials for report in trial.reports)
    values = sorted(value for each in reported if (value := finite(each)) is not None)
    best, worst = (0, -1) if record.experiment.mode == "min" else (-1, 0)
    return (values[best], values[worst]) if values else (0.0, 0.0)
