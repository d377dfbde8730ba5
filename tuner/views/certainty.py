"""Says how sure the answer is: the confirmed settings, or how far apart the best two are; page, report, command."""

from __future__ import annotations

import math
from dataclasses import replace

from tuner.record.confirm import ConfirmedSetting, ignores_seed, repeated, wobble
from tuner.record.records import finite
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted, formatted

ONE_VALUE = "no setting's value depends on the seed: the training ignores it, or sets another"


def certainty(record: ExperimentRecord) -> str:
    """Returns one or two sentences on how sure the answer is; empty if the search runs or has no answer."""
    settings, done = record.confirmation
    if record.state == "running" or not record.best() or record.facts.get("foreign"):
        return ""
    if not record.experiment.confirm:
        return _best_two(record)
    if not done:
        return _not_confirmed(record)
    best = record.confirmation.winner
    if best is None:
        keeps = " that keeps the constraints" * bool(record.experiment.constraint)
        return f"Not confirmed: no training with another seed has a finite value{keeps}."
    if ignores_seed([each.values for each in settings]):
        return f"Nothing was confirmed: {ONE_VALUE}."
    metric, seeds = record.experiment.wanted.metric, counted(len(best.values), "other seed")
    said = f"The setting of trial {best.trial} has the mean {metric} {formatted(best.mean)} over {seeds}"
    if best.low is not None and best.high is not None and best.best_probability is not None:
        said += f", with 95 % confidence {formatted(best.low)} to {formatted(best.high)}"
        if len(settings) > 1:
            chance = f"{100 * best.best_probability:.0f} %"
            said += f", and with {chance} probability the best mean of the {len(settings)} confirmed settings"
    return f"{said}. {_luck(best, record)}"


def _not_confirmed(record: ExperimentRecord) -> str:
    e = record.experiment
    planned = len(repeated(e, record.stats)) * e.confirm_seeds
    if not planned:
        return "Not confirmed: no trial keeps all constraints."
    ended = sum(len(each.values) for each in record.confirmation.settings)
    again = "a resume with a larger budget goes on" if record.out_of_time else "--resume goes on"
    return f"Not confirmed: {ended} of {counted(planned, 'training')} with other seeds have ended; {again}."


def confirmed_lines(record: ExperimentRecord) -> list[str]:
    """Returns the confirmed settings as the command prints them at the end of a search; empty without any."""
    (settings, done), lines = record.confirmation, []
    head = "confirmed" if done else "so far"
    for number, each in enumerate(settings):
        values = ", ".join("none" if value is None else formatted(value) for value in each.values)
        said = f"values {values or 'none yet'}"
        if each.mean is not None and each.low is not None:
            said = f"mean {formatted(each.mean)}, 95 % interval {formatted(each.low)} to {formatted(each.high)}"
            said += f", best with {100 * (each.best_probability or 0):.0f} %" * (len(settings) > 1)
        luck = _luck(each, record).lower().rstrip(".")
        lines += [f"{'' if number else head:12}trial {each.trial}: {said}; {luck}"]
    lines += [f"NOTE: {ONE_VALUE}"] if ignores_seed([each.values for each in settings]) else []
    return lines


def _luck(each: ConfirmedSetting, record: ExperimentRecord) -> str:
    """Says how the value by which the search chose a setting compares with the mean of other seeds."""
    found = f"The search found {formatted(each.single)}"
    if each.luck is None:
        return f"{found}."
    if each.luck > 0:
        return f"{found}, which was {formatted(each.luck)} better by luck."
    is_whole = all(trial.status == "completed" for trial in record.trials if trial.id == each.trial)
    return f"{found}{', which was no luck' if is_whole else f' by epoch {each.epochs}, where it stopped the trial'}."


def _best_two(record: ExperimentRecord) -> str:
    """Says how far apart the best two settings are, beside the wobble of their curves; empty with fewer."""
    e = record.experiment
    if e.aim.several:
        return ""
    pair = [each.original for each in repeated(replace(e, confirm=2), record.stats)]
    if len(pair) < 2 or e.scheduler == "pbt":
        return ""
    one, two = (trial.best_value(e.aim) for trial in pair)
    curves = [[finite(report.metrics.get(e.wanted.metric)) for report in trial.reports] for trial in pair]
    known = [w for curve in curves if (w := wobble([value for value in curve if value is not None])) is not None]
    gap, names = abs(one - two), " and ".join(trial.id for trial in pair)
    said = (
        f"The best two settings, of trials {names}, are {formatted(gap)} apart in {e.wanted.metric}, each with one seed"
    )
    if not known:
        return f"{said}; their curves are too short to show how much chance moves them."
    moved = math.hypot(*known) / math.sqrt(len(known))  # the square of a large value could overflow
    judged = "so chance may have decided which is better" if gap < 2 * moved else "which is less than that distance"
    return f"{said}; around their trend, their curves move by {formatted(moved)} per epoch, {judged}."
