"""Says how many trials a rule pruned, what that saved, and why it pruned none; the page, report and command show it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted, flat
from tuner.rules.hyperband import ADVICE, band_of
from tuner.spec.experiment import Experiment
from tuner.views.figures.drawing import tick


@dataclass(frozen=True)
class Savings:
    """An estimate of what the trials that a rule stopped did not train: epochs, seconds on workers, and a sentence.

    All are empty if no rule stopped a trial, or if it is unknown how many epochs such a trial trains. The seconds are 0
    and the sentence names none if no trial tells how long an epoch takes.
    """

    epochs: int = 0
    seconds: float = 0.0
    text: str = ""


@dataclass(frozen=True)
class NonePruned:
    """Why a rule pruned nothing, and the option that would change it; both are empty if there is nothing to say."""

    text: str = ""
    option: str = ""


@dataclass(frozen=True)
class _Length:
    """How many epochs a stopped trial would have trained.

    Attributes:
        most: the number of all trials, or the greatest.
        is_most: whether the trial may have trained fewer.
        why: what follows "lets each of the trials train" in the sentence on the estimate.
        of: returns the number for a trial with this flat config; None if all trials have `most`.
    """

    most: int
    why: str
    is_most: bool = False
    of: Callable[[dict[str, Any]], int] | None = None


def savings(record: ExperimentRecord) -> Savings:
    """Estimates the epochs and worker seconds that the trials which a rule stopped still needed to end by themselves.

    Each of them counts at its own speed, with the length that trials of this search have. A trial that reported only
    once has no speed, because that report also waited for the worker's start: it counts at the search's median speed.
    """
    stopped, usual, length = record.stats.stopped, record.stats.epoch_seconds, _length(record)
    if not stopped or length is None:
        return Savings()
    epochs, seconds = 0, 0.0
    for trial in stopped:
        left = max(0, (length.of(flat(trial.config)) if length.of else length.most) - trial.last_epoch)
        speed = usual if trial.epoch_seconds is None else trial.epoch_seconds
        epochs, seconds = epochs + left, seconds + left * (speed or 0.0)
    if epochs == 0:
        return Savings()
    whole = record.stats.epochs + epochs
    about = "At most" if length.is_most else "About"
    which = "the trial" if len(stopped) == 1 else f"each of the {len(stopped)} trials"
    on_workers = "" if usual is None else f" and {_long(seconds)} on workers"
    text = (
        f"{about} {epochs:,} of {whole:,} epochs ({100 * epochs / whole:.0f} %){on_workers}. This estimate lets "
        f"{which} that {_rule_of(record)} stopped train {length.why}{_speed(record)}."
    )
    return Savings(epochs, seconds, text)


def _speed(record: ExperimentRecord) -> str:
    stopped = record.stats.stopped
    if record.stats.epoch_seconds is None:
        return ""
    untimed = sum(trial.epoch_seconds is None for trial in stopped)
    if untimed == len(stopped):
        return " at the search's median speed"
    return " at its own speed" + (f" ({untimed} of them at the search's median speed)" if untimed else "")


def _rule_of(record: ExperimentRecord) -> str:
    return "asha" if record.changed else record.experiment.scheduler


def _length(record: ExperimentRecord) -> _Length | None:
    """Returns the length of the trials; None if it is unknown."""
    e, lengths = record.experiment, record.stats.lengths
    is_task = "data" in record.facts  # a task's trial trains max_epochs, a function's may end earlier by itself
    if is_task or (e.stop and (record.length or e.max_epochs in lengths)):
        most = e.max_epochs if is_task else record.length or e.max_epochs
        return _Length(most, f"{most} epochs", is_most=bool(e.stop))
    if not lengths or e.stop:
        return None
    most = max(lengths)
    # Trials that reached max_epochs were cut there: they do not tell which length a parameter sets.
    by_themselves = min(lengths) < e.max_epochs
    if by_themselves and (by_parameter := _by_parameter(record)):
        return by_parameter
    if len(lengths) == 1:
        return _Length(most, counted(most, "epoch"))
    return _Length(most, f"as long as the longest of the others ({most} epochs)", is_most=True)


def _by_parameter(record: ExperimentRecord) -> _Length | None:
    """Returns the length that a parameter sets, if one explains the different lengths of all completed trials.

    Either it is a number of epochs, or completed trials with equal values have equal lengths, and each stopped trial
    has the value of a completed one. Trials that ended by themselves before max_epochs must show it: two values that
    are numbers of epochs, or a value that two trials share.
    """
    known = [(flat(t.config), t.last_epoch) for t in record.trials if t.status == "completed" and t.reports]
    stopped = [flat(trial.config) for trial in record.stats.stopped]
    names = [name for name in known[0][0] if all(name in config for config in [*stopped, *(c for c, _ in known)])]
    most = record.experiment.max_epochs
    ended = [config for config, epochs in known if epochs < most]
    for name in names:
        if all(type(config[name]) is int for config in [*stopped, *(c for c, _ in known)]):
            # With one value, only a parameter that is called so is taken for the number of epochs.
            is_number = len({config[name] for config in ended}) > 1 or "epoch" in name.lower()
            for more in (0, 1):  # a function that also returns its metric reports once more
                own = partial(_number, name, more, most)
                if is_number and all(own(config) == epochs for config, epochs in known):
                    return _Length(most, _sets(name), of=own)
    if len(record.stats.lengths) == 1:
        return None
    groupings = []
    for number, name in enumerate(names):
        groups: dict[str, set[int]] = defaultdict(set)
        for config, epochs in known:
            groups[str(config[name])].add(epochs)
        is_shared = len({str(config[name]) for config in ended}) < len(ended)
        fits = is_shared and all(len(each) == 1 for each in groups.values())
        if fits and all(str(config[name]) in groups for config in stopped):
            groupings.append((len(groups), number, name, {value: each.pop() for value, each in groups.items()}))
    if not groupings:
        return None
    *_, name, lengths = min(groupings)
    return _Length(most, _sets(name), of=lambda config: lengths[str(config[name])])


def _number(name: str, more: int, most: int, config: dict[str, Any]) -> int:
    return min(most, int(config[name]) + more)


def _sets(name: str) -> str:
    return f"as many epochs as its {tick(name, 40)} sets"


def pruned(record: ExperimentRecord) -> str:
    """Says how many trials were pruned, and by what; if none was, why not."""
    scheduler = _rule_of(record)
    number, judged = record.stats.counts.get("pruned", 0), len(record.stats.stopped)
    if record.facts.get("foreign") or record.refused or not record.trials:
        return ""
    if not number:
        return f"0 of {counted(len(record.trials), 'trial')}{_none(record, scheduler)}."
    diverged = "" if number == judged else "the training diverged"
    if judged and diverged:
        diverged = f"{number - judged} because {diverged}"
        return f"{number} of {counted(len(record.trials), 'trial')}: {judged} by {scheduler}, {diverged}."
    return f"{number} of {counted(len(record.trials), 'trial')}, " + (
        f"because {diverged}." if diverged else f"by {scheduler}."
    )


def _none(record: ExperimentRecord, scheduler: str) -> str:
    """Says in few words why no trial was pruned; `why_none` says more where an option would change it."""
    if scheduler in ("fifo", "pbt"):
        return f": {scheduler} prunes none"
    if record.state == "running":
        return ""
    if waiting := sum(rung.waiting for rung in record.stats.rungs):
        return f": {waiting} {'waits' if waiting == 1 else 'wait'} at a rung for a promotion"
    if any(rung.cutoff_then is not None for rung in record.stats.rungs):
        return ": none was worse than a cutoff"
    return ": no trial was compared with another"


def why_none(record: ExperimentRecord) -> NonePruned:
    """Says why the search could prune nothing, and what to do; empty if it pruned trials or compared them."""
    e, stats = record.experiment, record.stats
    compared = any(rung.cutoff_then is not None for rung in stats.rungs)
    if compared or e.scheduler in ("fifo", "pbt") or record.facts.get("foreign") or not stats.lengths:
        return NonePruned()
    if e.scheduler == "hyperband" and (text := _without_rungs(record)):
        return NonePruned(text, "--scheduler asha")
    longest, first = max(stats.lengths), _first_comparison(record.rules)
    begin = f"{e.scheduler} pruned nothing"
    if longest == 1:
        return NonePruned(f"{begin}: the trials ended after 1 report. Report the metric after each epoch.")
    if first >= longest:
        more = f"{begin}: it first compares trials after epoch {first}, and they ended after {longest} or fewer."
        if e.scheduler in ("hyperband", "bohb") or e.auto_grace:
            return NonePruned(f"{more} Give --max-epochs {longest}.", f"--max-epochs {longest}")
        return NonePruned(f"{more} Give --grace-period 1.", f"--grace-period 1 --max-epochs {longest}")
    if record.length and not stats.rungs:
        late = f"when the first trial had ended after {record.length} epochs, the others had passed the rungs"
        return NonePruned(f"{begin}: {late}. Give --max-epochs {longest}.", f"--max-epochs {longest}")
    return NonePruned()


def _first_comparison(rules: Experiment) -> int:
    """The first epoch after which a rule compares trials."""
    if rules.scheduler in ("hyperband", "bohb"):
        return min(shape.rung for shape in band_of(rules.max_epochs, rules.reduction_factor))
    return rules.grace_period


def _without_rungs(record: ExperimentRecord) -> str:
    """Says why HyperBand pruned nothing, if only its first bracket began or trials were too short; empty otherwise.

    The first bracket prunes none of its trials. HyperBand opens the next one for a trial that starts while the first is
    full: more trials must run at once than it has room for. Trials of every later bracket wait at a rung, so a search
    without rungs had no later bracket.
    """
    e, counts = record.experiment, record.stats.counts
    shapes = band_of(e.max_epochs, e.reduction_factor)
    first, longest = shapes[0].size, max(record.stats.lengths)
    if len(shapes) > 1 and longest <= shapes[1].rung and not record.stats.rungs:
        return (
            f"hyperband pruned nothing: its first bracket prunes none, and the second compares trials after epoch "
            f"{shapes[1].rung}, but they ended after {longest} or fewer. Choose --scheduler asha, or give --max-epochs "
            f"{longest}."
        )
    if record.stats.rungs or counts.get("completed", 0) < max(1, min(first, len(record.trials) - 1)):
        return ""
    if len(record.trials) <= first:
        return f"hyperband pruned nothing: its first bracket prunes none and has room for {counted(first, 'trial')}."
    return (
        f"hyperband pruned nothing: all trials were in its first bracket, which prunes none and has room for {first}, "
        f"because no more ran at once. {ADVICE.format(more=first + 1)}"
    )


def _long(seconds: float) -> str:
    """Formats a duration with one unit: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"
