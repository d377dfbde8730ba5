"""Confirmed settings: what their estimates say, and which trials they come from."""

import itertools

import numpy as np
import pytest

from tuner.core.events import Report
from tuner.record import confirm
from tuner.record.confirm import confirmation, estimates, repeated, to_repeat, wobble
from tuner.record.records import TrialRecord
from tuner.record.search_stats import SearchStats
from tuner.spec.experiment import Experiment


def trial(number, values, x=None, confirms="", status="completed"):
    reports = tuple(Report(e, {"loss": v}, None, 10 * number + e, 100 * number + e) for e, v in enumerate(values, 1))
    return TrialRecord(
        f"{number:05}", {"x": number if x is None else x}, status, "", reports, confirms=confirms, seed=number
    )


def confirmed(*trials, **options):
    experiment = Experiment(**{"confirm": 2, "confirm_seeds": 2, "max_epochs": 2, **options})
    return confirmation(experiment, stats_of(experiment, trials))


def stats_of(experiment, trials):
    return SearchStats(experiment, trials, False, False)


SEARCH = trial(0, [0.9, 0.3]), trial(1, [0.2, 0.5]), trial(2, [0.1], status="pruned"), trial(3, [0.15], x=2)


def test_the_best_different_settings_are_repeated_seed_by_seed():
    experiment = Experiment(confirm=2, confirm_seeds=2)
    assert [each.original.id for each in repeated(experiment, stats_of(experiment, SEARCH))] == [
        "00002",
        "00001",
    ]
    assert to_repeat(experiment, SEARCH) == ["00002", "00001", "00002", "00001"]
    begun = *SEARCH, trial(4, [0.4, 0.4], x=2, confirms="00002"), trial(5, [], x=1, confirms="00001")
    assert to_repeat(experiment, begun) == ["00002", "00001"]
    more = *begun, trial(6, [0.05])  # the search was extended
    assert to_repeat(experiment, more) == ["00006", "00006", "00002"]


def test_the_values_of_the_search_do_not_enter_a_mean():
    repeats = [
        trial(4 + n, [v, 1.0], x=2 - n % 2, confirms=f"0000{2 - n % 2}") for n, v in enumerate([0.4, 0.3, 0.6, 0.5])
    ]
    settings, done = confirmed(*SEARCH, *repeats)
    assert done and [each.trial for each in settings] == ["00001", "00002"]  # the best mean first
    one, two = settings
    assert (one.values, one.trials, one.seeds) == ((0.3, 0.5), ("00005", "00007"), (5, 7))
    assert (one.mean, two.mean) == (pytest.approx(0.4), pytest.approx(0.5))
    assert (one.single, one.luck, two.single, two.luck) == (0.2, pytest.approx(0.2), 0.1, pytest.approx(0.4))
    assert one.best_probability + two.best_probability == pytest.approx(1) and one.best_probability > 0.5
    assert not confirmed(*SEARCH, *repeats[:3]).done and confirmed(*SEARCH) == ((), False)
    assert not confirmed(*SEARCH, *repeats[:3], trial(7, [0.5], x=1, confirms="00001", status="running")).done


def test_a_setting_that_diverges_with_a_seed_does_not_win():
    repeats = trial(4, [float("nan")], x=2, confirms="00002"), trial(5, [0.9], x=1, confirms="00001")
    repeats += trial(6, [0.1], x=2, confirms="00002"), trial(7, [0.8], x=1, confirms="00001")
    (one, two), done = confirmed(*SEARCH, *repeats)
    assert done and (one.trial, two.trial) == ("00001", "00002") and two.values == (None, 0.1)
    assert one.low is not None and one.best_probability == 1 and two.low is two.best_probability is None


def test_a_training_counts_once_it_has_ended():
    repeats = trial(4, [0.4], x=2, confirms="00002"), trial(5, [0.3], x=1, confirms="00001", status="running")
    (one, two), done = confirmed(*SEARCH, *repeats)
    assert not done and (one.trial, one.values, two.trials, two.mean) == ("00002", (0.4,), (), None)


def test_settings_that_break_a_constraint_are_not_confirmed_and_those_that_break_it_with_a_seed_do_not_win():
    rules = {"constraint": ("loss >= 0.25",), "confirm": 3, "confirm_seeds": 2}
    chosen = repeated(Experiment(**rules), stats_of(Experiment(**rules), SEARCH))
    assert [each.original.id for each in chosen] == ["00000", "00001"]
    repeats = [trial(4 + n, [v], x=n % 2, confirms=f"0000{n % 2}") for n, v in enumerate([0.1, 0.6, 0.3, 0.7])]
    (one, two), done = confirmed(*SEARCH, *repeats, **rules)
    assert done and (one.trial, one.values, two.values) == ("00001", (0.6, 0.7), (None, 0.3))


def test_maximized_metrics_give_the_same_estimates_with_the_other_sign():
    values = (0.3, 0.4, 0.35), (0.5, 0.6, 0.4), (0.31, 0.36, 0.5)
    negated = tuple(tuple(-value for value in each) for each in values)
    for one, other in zip(estimates(values, "min"), estimates(negated, "max"), strict=True):
        assert (one.mean, one.low, one.high, one.best) == (-other.mean, -other.high, -other.low, other.best)


def test_one_setting_gets_the_interval_of_student():
    (one,) = estimates(((1.0, 2.0, 3.0),), "min")
    half = 4.30265 / 3**0.5  # Student's quantile with 2 degrees of freedom, times the standard error
    assert one == (2, pytest.approx(2 - half, abs=1e-5), pytest.approx(2 + half, abs=1e-5), 1)


def test_without_a_second_value_nothing_is_known_of_the_noise_and_equal_values_have_none():
    assert [each[1:] for each in estimates(((1.0,), (2.0,)), "min")] == [(None, None, None)] * 2
    equal = (0.1, 0.1, 0.1), (0.1, 0.1, 0.1), (0.7, 0.7, 0.7)  # whose means are not exactly these
    assert [each[1:] for each in estimates(equal, "min")] == [(None, None, None)] * 3


def searches(number):
    """The true means and new values of three settings that a search chose by single values with as much noise."""
    stream = np.random.default_rng(5)
    for _ in range(number):
        truth = stream.normal(size=30)
        chosen = truth[np.argsort(truth + stream.normal(size=30))[:3]]
        yield chosen, tuple(map(tuple, (chosen[:, None] + stream.normal(size=(3, 3))).tolist()))


def test_intervals_cover_the_true_means_of_chosen_settings_and_of_the_winner(monkeypatch):
    monkeypatch.setattr(confirm, "_chances", lambda losses, *_: losses)  # takes 10 ms
    covered, won = [], []
    for truth, values in searches(2000):
        found = estimates(values, "min")
        covered += (inside := [each.low <= true <= each.high for each, true in zip(found, truth, strict=True)])
        won.append(inside[int(np.argmin([each.mean for each in found]))])
    assert 0.935 < np.mean(covered) < 0.97 and 0.935 < np.mean(won) < 0.97


def test_the_best_of_equal_settings_is_not_called_sure():
    claimed = [max(each.best for each in estimates(values, "min")) for _, values in searches(100)]
    right = [truth.argmin() == np.argmin([np.mean(own) for own in values]) for truth, values in searches(2000)]
    assert abs(np.mean(claimed) - np.mean(right)) < 0.12


def chances_by_hand(values, number=200_000):
    """How often each setting has the least true mean: draws of the model's parameters, weighted by their likelihood.

    The model: a value is its setting's mean plus noise; a mean is normal around a common centre, which is flat; the
    noise's variance has the prior 1 / variance, and the spread over the noise is half-Cauchy.
    """
    stream = np.random.default_rng(3)
    values = [np.array(own) for own in values]
    means, sizes = np.array([own.mean() for own in values]), np.array([len(own) for own in values])
    squares = sum(((own - own.mean()) ** 2).sum() for own in values)
    noise = np.sqrt(squares / stream.chisquare((sizes - 1).sum(), number))[:, None]
    spread = noise * np.abs(stream.standard_cauchy((number, 1)))
    total = noise**2 / sizes + spread**2
    centre = (means / total).sum(1, keepdims=True) / (1 / total).sum(1, keepdims=True)
    density = np.exp(-((means - centre) ** 2 / total).sum(1) / 2) / np.sqrt(total.prod(1) * (1 / total).sum(1))
    chosen = stream.choice(number, number, p=density / density.sum())
    noise, spread, total, centre = noise[chosen], spread[chosen], total[chosen], centre[chosen]
    centre = centre + stream.normal(size=(number, 1)) / np.sqrt((1 / total).sum(1, keepdims=True))
    share = spread**2 / total  # of a setting's own mean in what is known of its true mean
    true = share * means + (1 - share) * centre
    true = true + np.sqrt(share * noise**2 / sizes) * stream.normal(size=true.shape)
    return np.bincount(true.argmin(1), minlength=len(means)) / number


@pytest.mark.parametrize(
    "values",
    [
        ((1.0, 2.0, 3.0), (3.0, 1.0, 2.0), (2.0, 3.0, 1.0)),
        ((0.3, 0.4, 0.35), (0.5, 0.6, 0.4), (0.31, 0.36, 0.5)),
        ((0.1, 0.2), (0.5, 0.6, 0.55), (0.9, 0.7), (0.15, 0.3)),
    ],
)
def test_the_probability_of_being_the_best_is_that_of_its_model_in_any_order(values):
    found = [each.best for each in estimates(values, "min")]
    assert found == pytest.approx(chances_by_hand(values), abs=0.04) and sum(found) == pytest.approx(1)
    for order in itertools.permutations(range(len(values))):
        again = estimates(tuple(values[at] for at in order), "min")
        assert [each.best for each in again] == [found[at] for at in order]


def test_settings_with_equal_means_have_equal_chances_and_intervals():
    one, *others = estimates(((1.0, 2.0, 3.0), (3.0, 1.0, 2.0), (2.0, 3.0, 1.0)), "max")
    assert others == [one, one] and one.best == pytest.approx(1 / 3)


def test_a_curves_wobble_is_its_noise_around_the_trend():
    noise = np.random.default_rng(0).normal(size=4000)
    assert wobble((np.arange(4000) * -0.1 + 0.5 * noise).tolist()) == pytest.approx(0.5, rel=0.05)
    assert wobble([3.0, 2.0, 1.0]) is None
