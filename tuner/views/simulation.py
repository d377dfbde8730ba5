"""Applies stopping rules to a search's recorded reports, in their recorded order. Pure: no files, no clock."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tuner.record.events import RETURNED
from tuner.record.records import TrialRecord, finite
from tuner.record.results import ExperimentRecord
from tuner.rules.by_name import rule_of
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
    """A report in the order of the journal, or the event `trial_ended` of a trial.

    A trial's end is a separate arrival: the search's scheduler learned of the end at that event, after the trial's last
    report. Other trials may have started between the two.
    """

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
        self._trials, self._experiment = record.trials, record.experiment
        self._rules, self._length = rules, record.rules
        self._most = max(record.rules.max_epochs, *(trial.last_epoch for trial in record.trials), 1)
        self._rule = rule_of(rules, brackets)
        self._is_finished = record.state == "finished"
        self._promotes = rules.scheduler == "asha-promotion"
        self._is_own = _same_rule(record.experiment, rules, brackets)
        self._beyond = beyond
        self._extremes = _extremes(record)
        self._ended: dict[int, Fate] = {}
        self._leaving: dict[int, _Arrival] = {}  # ended trials that the rule still counts, until their `trial_ended`
        self._last: dict[int, _Arrival] = {}
        self._paused: set[int] = set()
        self._closed: set[int] = set()  # trials that, at the search's end, would train beyond their record
        self._waiting: dict[int, deque[_Arrival]] = defaultdict(deque)  # paused trial -> its arrivals until it resumes

    def fates(self) -> list[Fate]:
        """Replays all reports and returns one outcome per trial, in the order of the record."""
        arrivals = sorted(arrival for place in range(len(self._trials)) for arrival in self._arrivals(place))
        added = deque(sorted((trial.order, place) for place, trial in enumerate(self._trials)))
        for arrival in arrivals:
            while added and added[0][0] <= arrival.order:
                self._rule.added(added.popleft()[1])
            self._take(deque([arrival]))
        if self._is_finished and self._promotes:
            self._close()
        return [self._ended.get(place) or self._open(place) for place in range(len(self._trials))]

    def _take(self, queue: deque[_Arrival]) -> None:
        """Passes reports and trials' ends to the rule, then the kept arrivals of each trial that resumes because of it.

        An arrival of a paused trial is kept until the trial resumes. A report of an ended trial is ignored.
        """
        while queue:
            each = queue.popleft()
            if each.trial in self._paused and self._is_own and each.epoch <= self._trials[each.trial].last_epoch:
                # The recorded search decided on this paused trial because no other trial was left to run.
                for freed in self._settle(self._rule.idle()):
                    queue.extend(self._waiting.pop(freed, ()))
            if each.trial in self._paused:
                self._waiting[each.trial].append(each)
                continue
            if each.epoch == 0:  # the end of a trial without reports
                freed_trials = self._settle(self._rule.ended(each.trial, 0, None))
            elif each.is_end:
                freed_trials = self._take_end(each) + self._learn(each.trial)
            elif each.trial in self._ended:
                freed_trials = []
            else:
                freed_trials = self._judge(each)
            for freed in freed_trials:
                queue.extend(self._waiting.pop(freed, ()))

    def _judge(self, arrival: _Arrival) -> list[int]:
        """Judges one report; returns the paused trials that resume because of it."""
        trial = self._trials[arrival.trial]
        over = arrival.epoch >= self._most or self._ends_with(arrival)
        self._last[arrival.trial] = arrival
        if arrival.value is None:
            return self._end(arrival, Fate(trial.id, trial.last_epoch, "ended", arrival.epoch))
        # The search did not ask its rule about a report with which a trial ended by itself.
        completes = over and trial.status == "completed" and trial.decisions and trial.decisions[-1].action == "stop"
        asks = arrival.epoch < self._rules.max_epochs and not completes
        judged = self._rule.judge(*arrival[1:3], arrival.value) if asks else RuleDecision()
        if judged.action == "stop":
            return self._end(arrival, self._stopped(arrival, judged))
        if over:
            freed = self._settle(self._rule.settled(arrival.trial)) if self._promotes else []
            return freed + self._end(arrival, Fate(trial.id, trial.last_epoch, "ended", arrival.epoch))
        if judged.action == "pause":
            self._paused.add(arrival.trial)
        freed = self._settle(self._rule.settled(arrival.trial))
        # Ray removes the paused trials that it stops at once, but the trial that reported when it has ended.
        fate = self._ended.get(arrival.trial)
        return freed + self._end(arrival, fate) if fate else freed

    def _close(self) -> None:
        """Passes the end of a finished search to the rule: no trial runs, and no setting is left.

        A trial that would train beyond its record counts as completed.
        """
        while True:
            beyond = self._last.keys() - self._ended.keys() - self._paused - self._closed
            self._closed |= beyond
            for place in beyond:
                self._settle(self._rule.ended(place, self._last[place].epoch, self._last[place].value))
            decided = self._rule.idle()
            if not decided:
                return
            for freed in self._settle(decided):
                self._take(self._waiting.pop(freed, deque()))

    def _ends_with(self, arrival: _Arrival) -> bool:
        """Whether a trial ended by itself at this report: it completed, or failed in the pause after it.

        Any other trial that failed had continued after its last report, and failed in a later epoch.
        """
        trial = self._trials[arrival.trial]
        in_pause = trial.status == "failed" and trial.decisions and trial.decisions[-1].action == "pause"
        return bool(trial.status == "completed" or in_pause) and arrival.epoch == trial.last_epoch

    def _take_end(self, end: _Arrival) -> list[int]:
        """Removes a trial at its recorded end from the rule; returns the paused trials that resume because of it."""
        trial = self._trials[end.trial]
        if trial.status == "failed" and end.trial not in self._ended:
            return self._end(end, Fate(trial.id, trial.last_epoch, "ended", trial.last_epoch))
        return self._leave(end.trial)

    def _learn(self, place: int) -> list[int]:
        """Tells rules that do not know it the length of a trial that ended by itself, if the search's rungs moved."""
        trial, unknown = self._trials[place], self._rules.max_epochs > self._length.max_epochs
        if not unknown or trial.reason != RETURNED or self._ended[place].outcome != "ended":
            return []
        return self._settle(self._rule.learn(trial.last_epoch, self._paused))

    def _end(self, arrival: _Arrival, fate: Fate) -> list[int]:
        trial = self._trials[arrival.trial]
        self._ended[arrival.trial] = fate
        self._leaving[arrival.trial] = arrival
        as_recorded = trial.status in ENDED and arrival.order == trial.reports[-1].order
        return [] if as_recorded else self._leave(arrival.trial)

    def _leave(self, place: int) -> list[int]:
        """Removes an ended trial from the rule; returns the paused trials that resume because of it."""
        last = self._leaving.pop(place, None)
        if last is None:
            return []
        value = None if self._trials[place].status == "failed" else last.value
        return self._settle(self._rule.ended(place, last.epoch, value))

    def _settle(self, decided: Decisions) -> list[int]:
        freed = []
        for place, judged in decided:
            self._paused.discard(place)
            if judged.action == "stop":
                self._ended[place] = self._stopped(self._last[place], judged)
            else:
                freed.append(place)
        return freed

    def _stopped(self, arrival: _Arrival, judged: RuleDecision) -> Fate:
        trial, value = self._trials[arrival.trial], arrival.value
        assert value is not None
        return Fate(trial.id, trial.last_epoch, "stopped", arrival.epoch, judged.rung, value, judged.cutoff)

    def _open(self, place: int) -> Fate:
        """Returns the outcome of a trial left open by the replay: "ended" if it completed, failed or has no report."""
        trial, last = self._trials[place], self._last.get(place)
        ended = trial.status in ("completed", "failed") or last is None
        return Fate(trial.id, trial.last_epoch, "ended" if ended else "unknown", last.epoch if last else 0)

    def _arrivals(self, place: int) -> list[_Arrival]:
        trial, metric = self._trials[place], self._experiment.metric
        arrivals: list[_Arrival] = []
        for report in sorted((*trial.repeated, *trial.reports), key=lambda report: report.order):
            # As in the search, the rule does not get an epoch that a trial repeats after a restart.
            if not arrivals or report.epoch > arrivals[-1].epoch:
                arrivals.append(_Arrival(report.order, place, report.epoch, finite(report.metrics.get(metric))))
        if not arrivals:  # the trial failed before its first report, or has not reported yet
            return [_Arrival(trial.changed_at, place, 0, None, is_end=True)] if trial.status in ENDED else []
        last = arrivals[-1]
        if last.value is not None:
            arrivals += [last._replace(epoch=epoch, value=value) for epoch, value in self._beyond_of(trial)]
        end = last._replace(order=max(trial.changed_at, last.order), is_end=True)
        return [*arrivals, end] if trial.status in ENDED else arrivals

    def _beyond_of(self, trial: TrialRecord) -> tuple[tuple[int, float], ...]:
        """Returns the assumed epochs and values after the end of a trial's record."""
        if self._beyond == "missing":
            return ()
        value = self._extremes[0 if self._beyond == "best" else 1]
        first = trial.last_epoch + 1
        return tuple((epoch, value) for epoch in range(first, first + epochs_beyond(trial, self._length)))


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
