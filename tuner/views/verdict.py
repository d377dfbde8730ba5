"""Says in plain words what a search has found out: what was pruned, saved or lost, why it ended, what is next."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from tuner.core.events import ENDED
from tuner.core.rules.asha import percentile
from tuner.core.rules.own_length import of_grace, of_length
from tuner.errors import RequestError
from tuner.record.records import TrialRecord, finite
from tuner.record.report_keys import SPEED, USAGE
from tuner.record.results import KILLED, ExperimentRecord
from tuner.record.texts import counted, flat, formatted
from tuner.spec.metrics import all_diverged, one_value, without_metric
from tuner.spec.spaces import is_path
from tuner.views import commands
from tuner.views.audit_record import result_of
from tuner.views.certainty import certainty
from tuner.views.prediction import described
from tuner.views.progress import budget_of, progress_of
from tuner.views.savings import pruned, savings, why_none
from tuner.views.tables import rung_rows

LONG_NUMBER = 6  # two equal numbers of at most so many characters may be equal by chance
MOST_CLOSE = 10  # maximum number of close calls that a verdict lists
CLOSE_CALL_SHARE = 0.05  # a close call misses its cutoff by less than this share of its rung's interquartile range
CLOSE_CALLS = "close calls"
OUT_OF_TIME = "out of time"  # the outcome of a search that a budget ended
LEAST_SCORES = 8  # with fewer values, the spread of a rung means little and counts as 0
LONGEST = 1000  # maximum characters of a quoted reason or error


@dataclass(frozen=True)
class CloseCall:
    """A trial pruned although its value nearly reached the cutoff; `share` is margin / spread of its rung's values."""

    trial: str
    epoch: int
    margin: float
    share: float


@dataclass(frozen=True)
class Step:
    """A next step: a sentence that says what to do, and its command, which is empty if no command can do it."""

    text: str
    command: str


@dataclass(frozen=True)
class Point:
    """One thing that is known about a search: its name, one or two sentences, and a CSS class for it."""

    term: str
    text: str
    tone: str = ""


@dataclass(frozen=True)
class Verdict:
    """The conclusions of a search.

    Attributes:
        outcome: running, finished, out of time (a budget ended it), interrupted, killed, refused, or failed
            (its first trials failed alike, or no trial has a usable result).
        ended: why the search ended, or how far it is.
        points: what is known: failed trials, warnings, what was pruned and saved, and so on.
        epochs_saved, seconds_saved: estimates of the epochs, and of the seconds on workers, that pruning saved.
        close_calls: pruned trials that nearly reached their cutoff, the closest first, at most MOST_CLOSE.
        steps: what to do next, the most useful first.
    """

    outcome: str
    ended: str
    points: list[Point]
    epochs_saved: int
    seconds_saved: float
    close_calls: list[CloseCall]
    steps: list[Step]

    def about(self, term: str) -> str:
        return next((point.text for point in self.points if point.term == term), "")


def verdict_of(record: ExperimentRecord) -> Verdict:
    outcome, (calls, close) = outcome_of(record), _close_calls(record)
    epochs, seconds, saved = savings(record)
    warning, option = why_none(record)
    good_pruned, is_audited = _good_pruned(record)
    points = [
        Point("failed trials", _failed(record), "failed"),
        Point("warning", warning, "notice"),
        Point("values", _values(record), "notice"),
        Point("not checked", _not_checked(record), "notice"),
        Point("equal reports", _equal_reports(record), "notice"),
        Point("rule", _rule(record), "notice"),
        Point("constraints", _broken(record), "notice"),
        Point("waiting", _waiting(record, outcome)),
        Point("budget", budget_of(record)),
        Point("pruned", pruned(record)),
        Point("saved", saved),
        Point(CLOSE_CALLS, close),
        Point("good trials pruned?", good_pruned),
        Point("prediction", described(record)),
        Point("how sure?", certainty(record)),
    ]
    known = [point for point in points if point.text]
    steps = _steps(record, outcome, option, audited=is_audited)
    return Verdict(outcome, _ended(record, outcome), known, epochs, seconds, calls[:MOST_CLOSE], steps)


def outcome_of(record: ExperimentRecord) -> str:
    """Returns how a search ended, or its state if it runs; failed also means that no trial has a usable result."""
    if record.refused:
        return "refused"
    if record.reason == KILLED:
        return "killed"
    counts = record.stats.counts
    succeeded = bool(record.stats.ranked) and any(n for status, n in counts.items() if status != "failed")
    if record.state == "finished" and not succeeded:
        return "failed"
    return OUT_OF_TIME if record.out_of_time else record.state


def _ended(record: ExperimentRecord, outcome: str) -> str:
    counts, metric = record.stats.counts, record.experiment.wanted.metric
    ended, asked = progress_of(record)[:2]
    far = f"{ended} of {counted(asked or len(record.trials), 'trial')} have ended."
    over = "ran out of time" if "time budget" in record.reason else "ran out of its budget"
    reason = f"{_sentence(record.reason)} " if record.reason else ""
    if outcome == "refused":
        return f"The search was refused: {_sentence(record.reason)}"
    if outcome == "failed" and record.state != "failed":
        why = "every trial failed" if ended and ended == counts["failed"] else f"no finite {metric}"
        return f"The search ended without an answer: {_sentence('; '.join(filter(None, [why, record.reason])))}"
    all_of = "its trial" if len(record.trials) == 1 else f"all its {counted(len(record.trials), 'trial')}"
    texts = {
        "finished": f"The search is done: {all_of} ended.",
        "killed": f"The search's process was killed: {far} What was reported is kept.",
        "failed": f"The search failed: {reason}{far}",
        "interrupted": f"The search was interrupted: {reason}{far}",
        OUT_OF_TIME: f"The search {over if record.experiment.num_samples else 'has used its budget'}: {reason}{far}",
    }
    return texts.get(outcome, f"The search is {outcome}: {far}")


def _failed(record: ExperimentRecord) -> str:
    failed = record.stats.failed
    if not failed or record.refused:
        return ""
    newest = failed[-1]
    why = newest.errors[-1] if newest.errors else newest.reason
    return f"{counted(len(failed), 'trial').capitalize()} failed; the newest is {newest.id}: {_sentence(why)}"


def _rule(record: ExperimentRecord) -> str:
    changed = f"{record.changed[:1].upper()}{_sentence(record.changed[1:])} " if record.changed else ""
    rungs, before = record.rules.rungs_before_end(), replace(record, grace=0).rules.grace_period
    moved = [of_length(record.length, rungs)] if record.length else []
    moved += [of_grace(before, record.grace, rungs)] if record.grace else []
    return f"{changed}{' '.join(f'{each[:1].upper()}{each[1:]}.' for each in moved)}".strip()


def _broken(record: ExperimentRecord) -> str:
    limits = tuple(each for each in record.experiment.aim.constraints if each.at == "end")
    if not limits:
        return ""
    judged = [trial for trial in record.searched if trial.reports and trial.status in ENDED]
    aim = record.experiment.aim._replace(constraints=limits)
    number = sum(trial.violation(aim) > 0 for trial in judged)
    if not number:
        return ""
    named, do = " and ".join(map(str, limits)), "breaks" if number == 1 else "break"
    pruned = "" if record.experiment.aim.several else "; the rungs do not look at it, only 'at start' ends such a trial"
    return f"{number} of {counted(len(judged), 'trial')} {do} {named}{pruned}."


def _waiting(record: ExperimentRecord, outcome: str) -> str:
    number = sum(rung.waiting for rung in record.stats.rungs)
    ended = outcome not in ("running", "interrupted", "killed", OUT_OF_TIME)
    if record.experiment.scheduler != "asha-promotion" or not number or ended:
        return ""
    wait = "1 trial waits at a rung until it is" if number == 1 else f"{number} trials wait at a rung until they are"
    resumes = "" if record.state == "running" else "; --resume continues the search"
    if outcome == OUT_OF_TIME:
        resumes = "; --resume with a larger budget continues the search"
    return f"{wait} among the best 1/{record.experiment.reduction_factor:g} there{resumes}."


def diverged(record: ExperimentRecord) -> bool:
    """Whether each trial that reported and did not fail ended with NaN or infinity; False without such trials."""
    e, judged = record.experiment, [t for t in record.trials if t.reports and t.status != "failed"]
    goals = e.aim.goals if e.aim.several else [e.compared]
    return bool(judged) and all(any(finite(trial.last(g.metric)) is None for g in goals) for trial in judged)


def _values(record: ExperimentRecord) -> str:
    metric, wanted = record.experiment.compared.metric, record.experiment.wanted
    judged = [trial for trial in record.trials if trial.reports]
    if record.state == "running" or record.refused or record.facts.get("foreign") or not judged:
        return ""
    which = f"the {len(judged)} trials" if len(judged) > 1 else "the trial"
    if diverged(record):
        return _sentence(all_diverged(which, record.experiment.aim.named if record.experiment.aim.several else metric))
    silent = [t for t in judged if t.status == "completed" and not t.best(record.experiment.aim)]
    if silent and record.experiment.prune_by:
        named = {name for trial in silent for name in trial.reports[-1].metrics}
        return _sentence(without_metric(f"{len(silent)} of {counted(len(judged), 'trial')}", wanted.metric, named))
    value = finite(judged[0].reports[0].metrics.get(metric))
    each = () if record.experiment.aim.several else [report for trial in judged for report in trial.reports]
    same = bool(each) and all(report.metrics.get(metric, value) == value for report in each)
    return _sentence(one_value(which, metric, value)) if value is not None and same and len(judged) > 1 else ""


def _not_checked(record: ExperimentRecord) -> str:
    """Names the parameters of which no trial could tell that its value reaches the training."""
    named = ", ".join(f"{name} ({why})" if why else name for name, why in record.unchecked.items())[:LONGEST]
    values = "their values" if len(record.unchecked) > 1 else "its value"
    return f"not checked: {named}; nothing showed that the trials train with {values}." if named else ""


def _equal_reports(record: ExperimentRecord) -> str:
    """Names two trials with different settings whose reports are equal to the last bit, if they have long numbers."""
    metric, by_last = record.experiment.wanted.metric, dict[Any, list[TrialRecord]]()
    if record.state == "running" or record.refused or record.experiment.scheduler == "pbt":
        return ""
    for trial in record.searched:
        if trial.reports and len(repr(value := trial.reports[-1].metrics.get(metric)).strip("-0.")) > LONG_NUMBER:
            by_last.setdefault((trial.last_epoch, repr(value)), []).append(trial)
    for (first, *others), epochs in ((trials, epochs) for (epochs, _), trials in by_last.items()):
        for other in others:
            changed = {n: (v, flat(other.config).get(n)) for n, v in flat(first.config).items()}
            changed = {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
            if changed and _curve(first) == _curve(other):
                values = ", ".join(f"{n} {formatted(one)} and {formatted(two)}" for n, (one, two) in changed.items())
                same = f"trials {first.id} and {other.id} reported the same numbers, to the last digit, in "
                return f"{same}{counted(epochs, 'epoch')}, with {values}."
    return ""


def _curve(trial: TrialRecord) -> list[Any]:
    """Returns a trial's metrics without those of its speed and usage, as text: two NaN are equal there."""
    rest = {*USAGE, *SPEED}
    return [sorted((n, repr(v)) for n, v in report.metrics.items() if n not in rest) for report in trial.reports]


def _close_calls(record: ExperimentRecord) -> tuple[list[CloseCall], str]:
    """Returns the close calls, the closest first, and a sentence about them."""
    calls, spreads = [], {}
    for rung in record.stats.rungs:
        is_known, scores = len(rung.scores) >= LEAST_SCORES, rung.scores
        spread = percentile(scores, 75) - percentile(scores, 25) if is_known else 0.0
        spreads[rung.band, rung.bracket, rung.rung] = spread
    widest = CLOSE_CALL_SHARE * max(spreads.values(), default=0.0)
    for margin, index, number in takewhile(lambda each: each[0] < widest, record.stats.ranked_decisions):
        trial = record.trials[index]
        decision = trial.decisions[number]
        spread = spreads.get((decision.band, decision.bracket, decision.rung or 0), 0.0)
        if decision.action == "stop" and trial.status == "pruned" and margin < CLOSE_CALL_SHARE * spread:
            calls.append(CloseCall(trial.id, decision.epoch, margin, margin / spread))
    calls.sort(key=lambda call: call.share)
    if record.refused or record.experiment.aim.several or not any(rung.stopped for rung in record.stats.rungs):
        return calls, ""
    if not any(spread > 0 for spread in spreads.values()):
        return calls, f"Unknown: no rung has {LEAST_SCORES} different results to compare."
    missed = f"missed the cutoff by less than {100 * CLOSE_CALL_SHARE:.0f} % of the rung's interquartile range."
    return calls, f"{counted(len(calls), 'pruned trial') if calls else 'No pruned trials'} {missed}"


def _good_pruned(record: ExperimentRecord) -> tuple[str, bool]:
    """Returns a sentence on how many good trials were pruned, and whether an audit measured it."""
    if not any(rung.stopped for rung in record.stats.rungs):
        return "", False
    if record.state == "running":
        return "Unknown while the search runs.", False
    try:
        audit = result_of(record)
    except RequestError as error:
        return _sentence(str(error)), False
    if audit and audit.done:
        stale = " The best trial has changed since the audit; run the audit again." if audit.stale else ""
        return (
            f"Of {audit.done} pruned trials that an audit trained to the end, {audit.beat} beat the best trial. "
            f"{audit.estimate}{stale}"
        ), True
    if not (number := commands.num_audited(record)):
        return "", False
    # A trial that reached a rung early was compared with few others; `late` would pass its cutoff of today.
    late = sum(row.would_survive or 0 for row in rung_rows(record))
    early = f" Compared with all results at their rung, {late} of the pruned would survive today." if late else ""
    would = f"an audit of {number} of them would tell"
    how = would if record.retrainable else "only a search over a task can be audited"
    return f"Unknown; {how}.{early}", False


def _steps(record: ExperimentRecord, outcome: str, option: str, *, audited: bool) -> list[Step]:
    e, other = record.experiment, "Search other values, for example smaller learning rates:"
    more = f"Give it twice the {'time' if 'time budget' in record.reason else 'budget'}:"
    if record.facts.get("foreign") or outcome in ("running", "queued"):
        return []
    if outcome == "refused":
        return [Step("Correct what was wrong and start a new search:", commands.start_again(record))]
    if outcome == "failed":
        if not record.stats.failed:
            if record.out_of_time and not diverged(record):
                return [Step(more, commands.extend_command(record))]
            if e.prune_by and not diverged(record):
                other = "Report the metric, or search by another one of the reports:"
            return [Step(other, commands.start_again(record))]
        changed = commands.resume_command(record, *([f"--space {shlex.quote(e.space)}"] if is_path(e.space) else []))
        return [Step("Correct the code; then try the failed trials again:", changed)]
    if outcome in ("interrupted", "killed"):
        return [Step("Go on where it stopped:", commands.resume_command(record))]
    kinds = commands.audit_command, commands.confirm_command, commands.retrain_command, commands.extend_command
    audit, confirm, retrain, extend = (kind(record) for kind in kinds)
    has_diverged = diverged(record)
    steps = [
        (option, "Search with rules that prune here:", commands.start_again(record, option)),
        (record.out_of_time, more, extend),
        (audit and not audited, "Find out whether good trials were pruned:", audit),
        (confirm, "Find out how much of the best values is luck:", confirm),
        (retrain, "Train the best setting again:", retrain),
        (has_diverged, other, commands.start_again(record)),
        (not has_diverged and not record.out_of_time, "Try as many trials again:", extend),
    ]
    return [Step(text, command) for is_useful, text, command in steps if is_useful]


def _sentence(text: str) -> str:
    line = text.strip().split("\n", 1)[0][:LONGEST]
    return line if line.endswith((".", "!", "?")) else f"{line}."


def ending_lines(record: ExperimentRecord) -> list[str]:
    """Returns the verdict in a few lines, as the command prints it at the end of a search."""
    verdict = verdict_of(record)
    starts = {} if record.confirmation.winner else {"how sure?": "how sure    "}  # else `confirmed_lines` say it
    starts |= {"pruned": "pruned      ", "saved": "saved       ", "prediction": "prediction  "}
    starts |= dict.fromkeys(("warning", "values", "not checked", "equal reports"), "NOTE: ")
    lines = [f"{start}{verdict.about(term)}" for term, start in starts.items() if verdict.about(term)]
    next_steps = {"audit": commands.audit_command(record), "confirm": commands.confirm_command(record)}
    return lines + [f"{name:12}{command}" for name, command in next_steps.items() if command]
