"""Says how many trials a rule pruned, what that saved, or why it pruned none; page, report and command show it."""

from __future__ import annotations

from tuner.core.rules.hyperband import ADVICE, band_of
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted, exact_duration
from tuner.spec.constraints import BREAKS
from tuner.spec.methods import SCHEDULERS


def savings(record: ExperimentRecord) -> tuple[int, float, str]:
    """Estimates how many epochs, and seconds on workers, pruning saved; returns them with a sentence about them.

    A trial with unknown speed counts at the search's median speed. Without an estimate: 0, 0 and an empty text.
    """
    stopped, usual, (_, train, is_most) = record.cut_short, record.stats.epoch_seconds, record.whole_length()
    left = list(record.epochs_saved().values())
    epochs = sum(left)
    if not epochs:
        return 0, 0.0, ""
    speeds = [usual if trial.epoch_seconds is None else trial.epoch_seconds for trial in stopped]
    seconds = sum(number * (speed or 0.0) for number, speed in zip(left, speeds, strict=True))
    whole = record.stats.epochs + epochs
    done = "stopped" if len(stopped) == len(record.stats.stopped) else "stopped or paused"
    which = "the trial" if len(stopped) == 1 else f"each of the {len(stopped)} trials"
    on_workers, untimed = f" and {exact_duration(seconds)} on workers", sum(t.epoch_seconds is None for t in stopped)
    speed = " at its own speed" + (f" ({untimed} of them at the search's median speed)" if untimed else "")
    if usual is None:
        on_workers = speed = ""
    elif untimed == len(stopped):
        speed = " at the search's median speed"
    text = (
        f"{'At most' if is_most else 'About'} {epochs:,} of {whole:,} epochs ({100 * epochs / whole:.0f} %)"
        f"{on_workers}. This estimate lets {which} that {_rule_of(record)} {done} train {train}{speed}."
    )
    return epochs, seconds, text


def _rule_of(record: ExperimentRecord) -> str:
    return "asha" if record.changed else record.experiment.scheduler


def pruned(record: ExperimentRecord) -> str:
    """Says how many trials were pruned, and by what; if none was, why not."""
    scheduler, of = _rule_of(record), f"of {counted(len(record.searched), 'trial')}"
    cut = [trial for trial in record.searched if trial.shown_status == "pruned"]
    if record.facts.get("foreign") or record.refused or not record.trials:
        return ""
    others = f"; {n} diverged" if (n := sum(t.shown_status == "diverged" for t in record.searched)) else ""
    if number := len(cut):
        broke = sum(trial.reason.startswith(BREAKS) for trial in cut)
        causes = {f"by {scheduler}": number - broke, "because they broke a constraint": broke}
        said = [f"{count} {why}" if count < number else why for why, count in causes.items() if count]
        return f"{number} {of}{': ' if len(said) > 1 else ', '}{', '.join(said)}{others}."
    waiting = sum(rung.waiting for rung in record.stats.rungs)
    why = ": no trial was compared with another"
    if not SCHEDULERS[scheduler].prunes:
        why = f": {scheduler} prunes none"
    elif record.state == "running":
        why = ""
    elif waiting:
        why = f": {waiting} {'waits' if waiting == 1 else 'wait'} at a rung for a promotion"
    elif _has_compared(record):
        why = ": none was worse than a cutoff" if not record.experiment.aim.several else ": none had too bad a rank"
    return f"0 {of}{why}{others}."


def _has_compared(record: ExperimentRecord) -> bool:
    if record.experiment.aim.several:  # then trials have ranks, and no cutoff
        return any(decision.recorded for trial in record.trials for decision in trial.decisions)
    return any(rung.cutoff_then is not None for rung in record.stats.rungs)


def why_none(record: ExperimentRecord) -> tuple[str, str]:
    """Says why a search compared no trials, and which option helps; both are empty if it did or no reason is known."""
    e, stats, rules = record.experiment, record.stats, record.rules
    row = SCHEDULERS[e.scheduler]
    if _has_compared(record) or not row.prunes or record.facts.get("foreign") or not stats.lengths:
        return "", ""
    if e.scheduler == "hyperband" and (text := _without_rungs(record)):
        return text, "--scheduler asha"
    longest, first, begin = max(stats.lengths), rules.grace_period, f"{e.scheduler} pruned nothing"
    if row.has_bands:
        first = min(shape.rung for shape in band_of(rules.max_epochs, rules.reduction_factor))
    if longest == 1:
        return f"{begin}: the trials ended after 1 report. Report the metric after each epoch.", ""
    if first >= longest:
        more = f"{begin}: it first compares trials after epoch {first}, and they ended after {longest} or fewer."
        if row.has_bands or e.auto_grace:
            return f"{more} Give --max-epochs {longest}.", f"--max-epochs {longest}"
        return f"{more} Give --grace-period 1.", f"--grace-period 1 --max-epochs {longest}"
    if record.length and not any(d.rung is not None for trial in record.trials for d in trial.decisions):
        late = f"when the first trial had ended after {record.length} epochs, the others had passed the rungs"
        return f"{begin}: {late}. Give --max-epochs {longest}.", f"--max-epochs {longest}"
    return "", ""


def _without_rungs(record: ExperimentRecord) -> str:
    """Says why HyperBand pruned nothing, if only its first bracket began or trials were too short; empty otherwise."""
    e, stats = record.experiment, record.stats
    shapes = band_of(e.max_epochs, e.reduction_factor)
    first, longest, begin = shapes[0].size, max(stats.lengths), "hyperband pruned nothing: "
    if stats.rungs:
        return ""
    if len(shapes) > 1 and longest <= shapes[1].rung:
        return (
            f"{begin}its first bracket prunes none, and the second compares trials after epoch {shapes[1].rung}, but "
            f"they ended after {longest} or fewer. Choose --scheduler asha, or give --max-epochs {longest}."
        )
    if stats.counts["completed"] < max(1, min(first, len(record.trials) - 1)):
        return ""
    if len(record.trials) <= first:
        return f"{begin}its first bracket prunes none and has room for {counted(first, 'trial')}."
    return (
        f"{begin}at most {first} trials ran at once, so all were in its first bracket, which has room for {first} and "
        f"prunes none. {ADVICE.format(more=first + 1)}"
    )
