"""Judges the settings that `--confirm` trains again with other seeds: mean, interval, chance to be best, and luck.

The value of a training is its best value of the metric in any epoch, as everywhere in a search. What is estimated is
the mean of that value over seeds (initial weights, order of examples, dropout) on the search's own split of the data.
The search chose these settings because their single values were good, so these values are partly luck; they are left
out, and the mean of the new seeds alone has no such bias. Three new values say little about their own spread. So the
settings share one estimate of the variance between seeds, pooled over all of them, and the intervals are Student's.

The best of several means is partly luck, too: with 10 equal settings, a plain 95 % interval would miss the winner's
true mean in 1 of 5 searches, always on the worse side. So the winner's interval gives that side a miss of 5 %/K for K
settings (Bonferroni, as in the projection intervals of Andrews, Kitagawa and McCloskey, "Inference on Winners", QJE
2024), and the better side the remaining 5 % - 5 %/K. The probability of being the best comes from draws of a
hierarchical normal model with a half-Cauchy prior on the spread between settings (Gelman, Bayesian Analysis 2006),
whose scale is the noise. Only the values within settings say how large the noise is.
Without that prior, it was 66 % where 43 % were right. `benchmarks/confirm.py` measures how often all this is right.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tuner.core.events import ENDED
from tuner.record.columns import column
from tuner.record.records import TrialRecord
from tuner.record.search_stats import SearchStats
from tuner.spec.experiment import Experiment
from tuner.spec.metrics import sign_of

MISSES = 0.05  # how often an interval may miss the true mean
DRAWS = 2000  # draws for the probability of being the best, whose standard error is then at most 1.1 %
LEAST_REPORTS = 4  # with fewer reports in the second half of a curve, its wobble is unknown


class Estimate(NamedTuple):
    """A setting's mean over seeds; its 95 % interval and the probability that no other setting's true mean is better.

    The last three are None if no setting has two different values, or if there is no mean.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    best: float | None = None


@functools.lru_cache(maxsize=128)  # takes 10 ms, and the dashboard makes a record after each event
def estimates(values: tuple[tuple[float, ...], ...], mode: str) -> tuple[Estimate, ...]:
    """Estimates the mean of each setting from its values of different seeds, at least one for each setting."""
    import numpy as np
    from scipy.special import stdtrit  # the quantiles of Student's distribution

    sizes, means = np.array([len(each) for each in values]), np.array([statistics.fmean(each) for each in values])
    degrees, sign = int((sizes - 1).sum()), sign_of(mode)
    squares = sum(float(((np.array(each) - mean) ** 2).sum()) for each, mean in zip(values, means, strict=True))
    if all(len({*each}) == 1 for each in values):  # `squares` may be a rounding error
        return tuple(Estimate(float(mean)) for mean in means)
    sigma = (squares / degrees) ** 0.5
    errors, number, losses = sigma / np.sqrt(sizes), len(means), sign * means
    better, worse = np.full((2, number), MISSES / 2)
    if number > 1:
        is_winner = losses == losses.min()  # each of several equal ones, so that their order does not matter
        worse[is_winner], better[is_winner] = MISSES / number, MISSES - MISSES / number
    bounds = losses - stdtrit(degrees, 1 - better) * errors, losses + stdtrit(degrees, 1 - worse) * errors
    low, high = bounds if sign > 0 else (-bounds[1], -bounds[0])
    best = _chances(losses, sizes, sigma, degrees)
    return tuple(Estimate(*map(float, each)) for each in zip(means, low, high, best, strict=True))


def _chances(losses: Any, sizes: Any, sigma: float, degrees: int) -> Any:
    """Returns how often each setting has the least true loss, in draws from the posterior of the hierarchical model.

    The order of the settings does not matter, and settings with equal means of equally many values get equal chances.
    """
    import numpy as np

    order = np.lexsort((sizes, losses))
    losses, sizes = losses[order], sizes[order]
    rng, number = np.random.default_rng(0), len(losses)
    scale = np.sqrt(degrees / rng.chisquare(degrees, DRAWS))[:, None, None]  # sigma of each draw, in units of `sigma`
    spread = np.concatenate([[0], np.geomspace(0.1, 30, 20)])  # between the settings' true means, in units of sigma
    own = np.broadcast_to((scale * sigma) ** 2 / sizes, (DRAWS, 1, number))
    total = own + (scale * sigma * spread[:, None]) ** 2  # (draw, spread, setting): variance around the common centre
    weight = 1 / total
    precision = weight.sum(axis=2, keepdims=True)
    centre = (weight * losses).sum(axis=2, keepdims=True) / precision
    log = -0.5 * (np.log(total) + weight * (losses - centre) ** 2).sum(axis=2) - 0.5 * np.log(precision[..., 0])
    log += np.log(np.gradient(spread) / (1 + spread**2))  # the half-Cauchy prior, and the widths of the grid's cells
    mass = np.exp(log - log.max(axis=1, keepdims=True)).cumsum(axis=1)
    at = (mass < rng.random((DRAWS, 1)) * mass[:, -1:]).sum(axis=1)
    rows = np.arange(DRAWS)
    centre, precision, total, own = centre[rows, at], precision[rows, at], total[rows, at], own[:, 0]
    centre = centre + rng.standard_normal((DRAWS, 1)) / np.sqrt(precision)
    shrink = own / total
    # With a spread of 0, `shrink` is 1: all true means are the centre, and the settings share that draw.
    drawn = centre + (1 - shrink) * (losses - centre)
    drawn += np.sqrt((1 - shrink) * own) * rng.standard_normal((DRAWS, number))
    chances = _shares(drawn).mean(axis=0)
    _, alike = np.unique(np.stack([losses, sizes]), axis=1, return_inverse=True)
    alike = alike.reshape(-1)  # numpy 2.0 returned another shape
    chances = (np.bincount(alike, chances) / np.bincount(alike))[alike]
    return chances[np.argsort(order)]


def _shares(losses: Any) -> Any:
    """Returns which loss of each row is the least, as 1, or as 1 / n for each of n equal ones."""
    least = losses == losses.min(axis=-1, keepdims=True)
    return least / least.sum(axis=-1, keepdims=True)


@dataclass(frozen=True)
class ConfirmedSetting:
    """A setting of the search that trained again with other seeds; values are of the search's metric.

    Attributes:
        trial: the search's best trial with this setting.
        single: that trial's best value, by which the search chose the setting; `epochs` is how long it trained.
        trials, seeds, values: the ended trials that trained the setting again, their seeds, and the best value of each;
            None for a trial without a finite value, or that broke a constraint.
        mean: None without values. The best mean wins; a setting with a missing value cannot, unless all miss one.
        low, high, best_probability: the 95 % interval of the true mean, and its chance to be the best; None if unknown.
        luck: if `trial` was stopped early, the missing epochs count, too. None without a mean, or if no seed matters.
    """

    trial: str = column("", "the search's trial with this setting", "trial")
    trials: tuple[str, ...] = column(shown="")
    seeds: tuple[int, ...] = column(shown="")
    mean: float | None = column("", "over the other seeds")
    low: float | None = column("95 % from")
    high: float | None = column("95 % to")
    best_probability: float | None = column("probability of the best mean")
    single: float = column("value in the search")
    luck: float | None = column("", "how much better the value in the search is than the mean")
    values: tuple[float | None, ...] = column("", "", "list", "page")
    epochs: int = column(shown="report")
    config: dict[str, Any] = column("parameters", "", "parameters")


class Repeated(NamedTuple):
    """A setting to confirm: the search's best trial with it, and the trials that train it again."""

    original: TrialRecord
    repeats: list[TrialRecord]


def repeated(experiment: Experiment, stats: SearchStats) -> list[Repeated]:
    """Returns the best `--confirm` different settings that keep the constraints, the best first."""
    repeats: dict[str, list[TrialRecord]] = {}
    for trial in stats.trials:
        if trial.confirms:
            repeats.setdefault(_key(trial), []).append(trial)
    chosen: dict[str, Repeated] = {}
    for rank in stats.ranked:
        trial = stats.trials[rank.trial_index]
        if len(chosen) >= experiment.confirm:
            break
        if not (trial.confirms or rank.violation):
            chosen.setdefault(_key(trial), Repeated(trial, repeats.get(_key(trial), [])))
    return list(chosen.values())


def to_repeat(experiment: Experiment, trials: Sequence[TrialRecord]) -> list[str]:
    """Returns the trials whose settings have still to train again, one entry a training: first each with one seed.

    So if the search is stopped, all settings have as many seeds.
    """
    settings = repeated(experiment, SearchStats(experiment, tuple(trials), False, False))
    rounds = range(experiment.confirm_seeds)
    return [each.original.id for number in rounds for each in settings if len(each.repeats) <= number]


class Confirmation(NamedTuple):
    """The settings that train or trained again, the best mean first; `done` if each has trained with all seeds.

    Without such trainings there are no settings, and it is not done.
    """

    settings: tuple[ConfirmedSetting, ...]
    done: bool

    @property
    def winner(self) -> ConfirmedSetting | None:
        """The setting with the best mean, whose trials have the answer; None before it is done, or without a mean."""
        return self.settings[0] if self.done and self.settings[0].mean is not None else None


def confirmation(experiment: Experiment, stats: SearchStats) -> Confirmation:
    chosen = repeated(experiment, stats) if experiment.confirm else []
    if not any(each.repeats for each in chosen):
        return Confirmation((), done=False)
    aim, goal, mode = experiment.aim, experiment.wanted, experiment.wanted.mode
    ended = [[trial for trial in each.repeats if trial.status in ENDED] for each in chosen]
    values = [tuple(None if t.violation(aim) else t.best_value(aim) for t in repeats) for repeats in ended]
    whole = [each for each in values if each and None not in each] or values
    judged = (tuple(value for value in each if value is not None) for each in whole)
    found = iter(estimates(tuple(filter(None, judged)), mode))
    settings, has_noise = [], not ignores_seed(values)
    for (original, _), repeats, own in zip(chosen, ended, values, strict=True):
        finite_ones = [value for value in own if value is not None]
        mean = statistics.fmean(finite_ones) if finite_ones else None
        single = original.best_value(aim)
        settings.append(
            ConfirmedSetting(
                original.id, tuple(trial.id for trial in repeats), tuple(trial.seed for trial in repeats), mean,
                *(next(found)[1:] if finite_ones and own in whole else (None, None, None)), single,
                goal.sign * (mean - single) if has_noise and mean is not None else None,
                own, original.length(experiment.compared, goal), original.config,
            )
        )  # fmt: skip
    settings.sort(key=lambda each: (each.mean is None, None in each.values, goal.sign * (each.mean or 0)))
    pairs = zip(chosen, values, strict=True)
    done = all(len(each.repeats) == len(own) >= experiment.confirm_seeds for each, own in pairs)
    return Confirmation(tuple(settings), done)


def ignores_seed(values: Sequence[Sequence[float | None]]) -> bool:
    """Whether no setting's value changes with its seed, and one has several seeds."""
    return any(len(own) > 1 for own in values) and all(len({*own}) <= 1 and None not in own for own in values)


def wobble(values: Sequence[float]) -> float | None:
    """Returns how much the second half of a curve jumps from report to report: the standard deviation around its trend.

    The differences between neighbouring reports, less their mean, have twice the variance of a single report. None if
    the half has fewer than LEAST_REPORTS reports, or if a difference overflows.
    """
    half = values[len(values) // 2 :]
    changes = [b - a for a, b in itertools.pairwise(half)]
    if len(half) < LEAST_REPORTS or not all(map(math.isfinite, changes)):
        return None
    return statistics.stdev(changes) / 2**0.5


def _key(trial: TrialRecord) -> str:
    """Returns a text that is equal for two trials with the same setting."""
    return json.dumps(trial.config, sort_keys=True, default=str)
