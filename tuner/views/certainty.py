"""Says how sure the answer is: the confirmed settings, or how far apart the best two are; page, report, command."""

from __future__ import annotations

import math
from dataclasses import replace

from tuner.record.confirm import ConfirmedSetting, repeated, wobble
from tuner.record.records import finite
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted, formatted

ONE_VALUE = "each of the settings has the same value with every seed: the training ignores its seed"


def certainty(record: ExperimentRecord) -> str:
    """Returns one or two sentences on how sure the answer is; empty if the search runs or has no answer."""
    settings, done = record.confirmation
    if record.state == "running" or record.refused or record.facts.get("foreign"):
        return ""
    if not record.experiment.confirm:
        return _best_two(record)
    if not done:
        ended = sum(value is not None for each in settings for value in each.values)
        planned = record.experiment.confirm * record.experiment.confirm_seeds
        return f"Not confirmed: {ended} of at most {planned} trainings with other seeds have a value; --resume goes on."
    best = settings[0]
    if best.mean is None:
        return "Not confirmed: no training with another seed has a finite value."
    metric, seeds = record.experiment.wanted.metric, counted(len(best.values), "other seed")
    said = f"The setting of trial {best.trial} has the mean {metric} {formatted(best.mean)} over {seeds}"
    if best.low is not None and best.high is not None and best.best_probability is not None:
        said += f", with 95 % confidence {formatted(best.low)} to {formatted(best.high)}"
        if len(settings) > 1:
            chance = f"{100 * best.best_probability:.0f} %"
            said += f", and with {chance} probability the best mean of the {len(settings)} confirmed settings"
    return f"{said}. {_luck(best, record)}{f' NOTE: {ONE_VALUE}.' if _ignores_seed(settings) else ''}"


def confirmed_lines(record: ExperimentRecord) -> list[str]:
    """Returns the confirmed settings as the command prints them at the end of a search; empty without any."""
    settings, lines = record.confirmation.settings, []
    for number, each in enumerate(settings):
        known = [formatted(value) if value is not None else "none" for value in each.values]
        said = f"trial {each.trial}: values {', '.join(known)}" if each.mean is None or each.low is None else (
            f"trial {each.trial}: mean {formatted(each.mean)}, {formatted(each.low)} to {formatted(each.high)}, "
            f"best with {100 * (each.best_probability or 0):.0f} %"
        )  # fmt: skip
        lines += [f"{'' if number else 'confirmed':12}{said}; {_luck(each, record).lower().rstrip('.')}"]
    lines += [f"NOTE: {ONE_VALUE}"] if _ignores_seed(settings) else []
    return lines


def _luck(each: ConfirmedSetting, record: ExperimentRecord) -> str:
    """Says how the value by which the search chose a setting compares with the mean of other seeds."""
    found = f"The search found {formatted(each.single)}"
    if each.luck is None:
        return f"{found}."
    if each.epochs < record.experiment.max_epochs and each.luck < 0:
        return f"{found} after {each.epochs} of {record.experiment.max_epochs} epochs."
    if each.luck <= 0:
        return f"{found}, which was no luck."
    return f"{found}: {formatted(each.luck)} of it was luck."


def _ignores_seed(settings: tuple[ConfirmedSetting, ...]) -> bool:
    return any(len(each.values) > 1 for each in settings) and all(len({*each.values}) <= 1 for each in settings)


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
    moved = math.sqrt(sum(each**2 for each in known) / len(known))
    judged = "so chance may have decided which is better" if gap < 2 * moved else "which is less than that distance"
    return f"{said}; around their trend, their curves move by {formatted(moved)} per epoch, {judged}."
