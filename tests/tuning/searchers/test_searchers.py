"""Every searcher: settings are the seed's, lie in what was declared, and come again when the calls do."""

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
from ray import tune
from searching import SAMPLES, drive, experiment_of

from tuner.space import Space
from tuner.spec import domains
from tuner.spec.experiment import CHOICES
from tuner.tuning.searchers.forest import NUM_RANDOM, ForestSearcher
from tuner.tuning.searchers.named import build_searcher
from tuner.tuning.searchers.sampling import shuffled
from tuner.tuning.searchers.trees import RISK_TREES, Forest, Risk, features, no_risk

SEARCHERS = CHOICES["searcher"]


def space_of(**params):
    return Space(params=params, train=print)


def wide():
    """Every kind of range and choice that every searcher takes."""
    return space_of(
        lr=tune.loguniform(1e-4, 1e-1),
        momentum=tune.uniform(0.5, 0.99),
        width=tune.choice([4, 8, 16, 32]),
        depth=tune.randint(1, 5),
        units=tune.lograndint(2, 200),
        act=tune.choice(["relu", "tanh"]),
        norm={"on": tune.choice([True, False]), "eps": tune.loguniform(1e-8, 1e-2)},
    )


def settings_of(searcher, space, seed=0, num_samples=SAMPLES, **others):
    return drive(build_searcher(experiment_of(searcher, seed, num_samples, **others), space))


def assert_declared(space, setting):
    flat, declared = dict(domains.leaves(setting)), dict(domains.leaves(space.params))
    assert set(flat) == set(declared)
    for name, value in flat.items():
        described = domains.describe(declared[name])
        if "values" in described:
            assert value in described["values"] and type(value) in {type(v) for v in described["values"]}, (name, value)
            continue
        if "lower" not in described:
            continue
        integers, step = "randint" in described["kind"], described.get("q")
        assert type(value) is (int if integers else float), (name, value)
        top = described["upper"] - 1 if integers and not step else described["upper"]
        assert described["lower"] <= value <= top, (name, value)
        if step:
            assert math.isclose(value / step, round(value / step), abs_tol=1e-6), (name, value)


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_the_seed_alone_gives_the_settings_and_the_global_random_streams_stay_as_they_are(searcher):
    drawn = []
    states = lambda: (random.getstate(), np.random.get_state()[1].tolist())  # noqa: E731
    for disturbed in (0, 1):
        random.seed(disturbed)
        np.random.seed(disturbed)
        before = states()
        drawn.append(settings_of(searcher, wide(), seed=5))
        assert states() == before
    first, second = drawn
    assert first == second and len(first) == SAMPLES
    for setting in first:
        assert_declared(wide(), setting)
    assert settings_of(searcher, wide(), seed=6) != first


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_a_diverged_trial_does_not_end_the_search(searcher):
    worst = itertools.cycle([math.inf, 1.0, math.nan])
    settings = drive(build_searcher(experiment_of(searcher), wide()), score=lambda flat: next(worst))
    assert len(settings) == SAMPLES


@pytest.mark.parametrize("searcher", ["forest", "hyperopt", "optuna", "bohb"])
def test_a_model_based_searcher_learns_from_what_it_is_told(searcher):
    space = space_of(x=tune.uniform(-10, 10), y=tune.uniform(-10, 10))
    close = lambda flat: (flat["x"] - 3) ** 2 + (flat["y"] + 2) ** 2  # noqa: E731
    late = []
    for seed in range(3):
        built = build_searcher(experiment_of(searcher, seed, num_samples=45), space)
        late += [close(setting) for setting in drive(built, score=close)][-20:]
    by_chance = [close(setting) for setting in settings_of("random", space, num_samples=500)]
    assert np.median(late) < 0.8 * np.median(by_chance)


# forest


def test_the_forest_learns_from_trials_that_still_train_and_not_from_what_failed():
    space = space_of(x=tune.uniform(0, 1))
    built = build_searcher(experiment_of("forest", num_samples=200), space)
    proposed = []
    for number in range(120):
        trial = f"{number:05d}"
        x = built.suggest(trial)["x"]
        proposed.append(x)
        if x > 0.5:  # the best of all, until it fails
            built.report(trial, {"training_iteration": 1, "loss": -1.0})
            built.complete(trial, error=True)
        else:
            built.report(trial, {"training_iteration": 1 + number % 3, "loss": x})
    assert np.mean([x < 0.1 for x in proposed[20:]]) > 0.3 > np.mean([x > 0.5 for x in proposed[20:]])


def drive_failing(space, fails, seed=0, num=150, **options):
    """Returns a search's settings, of which some fail and the others are better, the nearer they lie to these."""
    built, settings = build_searcher(experiment_of("forest", seed, num_samples=num, **options), space), []
    for number in range(num):
        settings.append(setting := built.suggest(trial := f"{number:05d}"))
        if fails(setting):
            built.complete(trial, error=True)
        else:
            built.report(trial, {"training_iteration": 1, "loss": -sum(setting.values())})
    return settings


def test_few_settings_fail_though_the_best_ones_lie_beside_those_that_fail():
    space, fails = space_of(x=tune.uniform(0, 1), y=tune.uniform(0, 1)), lambda setting: sum(setting.values()) > 1.2
    for seed in range(2):
        late = drive_failing(space, fails, seed)[50:]
        assert np.mean([fails(setting) for setting in late]) < 0.15  # by chance 0.32
        assert np.mean([1 < sum(setting.values()) <= 1.2 for setting in late]) > 0.4  # by chance 0.18


def test_a_setting_that_has_failed_is_not_started_again_while_others_are_left():
    space = space_of(x=tune.choice(list(range(6))), y=tune.choice(list(range(6))))
    settings = drive_failing(space, lambda setting: sum(setting.values()) > 6)
    failed = [(s["x"], s["y"]) for s in settings if sum(s.values()) > 6]
    assert len(failed) == len(set(failed))


def test_where_everything_fails_the_settings_stay_random():
    settings = drive_failing(space_of(x=tune.uniform(0, 1)), lambda setting: True, num=60)
    assert len({setting["x"] for setting in settings}) == 60
    assert np.ptp([setting["x"] for setting in settings[20:]]) > 0.8


def test_a_guess_that_failed_is_not_tried_again():
    grid, guess = tune.choice(list(range(6))), {"x": 5, "y": 5}
    space = space_of(x=grid, y=grid)
    settings = drive_failing(space, lambda setting: setting == guess, num=40, prior=("x=5", "y=5"))
    failed = [setting == guess for setting in settings]
    assert failed[0] and not any(failed[1:])


def test_failures_are_remembered_beyond_the_trials_that_a_forest_learns_from(monkeypatch):
    monkeypatch.setattr("tuner.tuning.searchers.forest.MAX_TRIALS", 20)
    grid = tune.choice(list(range(12)))
    settings = drive_failing(space_of(x=grid, y=grid), lambda setting: sum(setting.values()) > 18)
    failed = [(s["x"], s["y"]) for s in settings if sum(s.values()) > 18]
    assert len(failed) == len(set(failed)) > 2


@pytest.mark.parametrize("sound", [3, 12])
def test_with_constraints_failed_trials_do_not_bring_a_model_without_them(sound):
    space = space_of(x=tune.uniform(0, 1))
    built = build_searcher(experiment_of("forest", num_samples=60, constraint=("size <= 0.5",)), space)
    for number in range(20):
        x = built.suggest(trial := f"{number:05d}")["x"]
        if number >= sound:
            built.complete(trial, error=True)
        else:
            built.complete(trial, {"training_iteration": 1, "loss": -x, "size": x})
    built.suggest("00020")
    assert built._forest is None and (built._improving is not None) == (sound >= NUM_RANDOM)


def test_a_setting_that_failed_has_the_risk_1_and_one_that_trained_0():
    from sklearn.ensemble import ExtraTreesRegressor

    stream = np.random.default_rng(0)
    known, others = stream.random((40, 3), dtype=np.float32), stream.random((9, 3), dtype=np.float32)
    failed = list(stream.random(40) < 0.3)
    risk = Risk(known, failed, 5, {others[0].tobytes()})
    assert (risk.at(known) == failed).all()
    whole = ExtraTreesRegressor(32, max_features=0.8, random_state=5).fit(known, np.array(failed, dtype=float))
    first = np.mean([tree.predict(others[1:]) for tree in whole.estimators_[:RISK_TREES]], axis=0)
    assert risk.at(others) == pytest.approx([1, *first])
    assert (no_risk().at(known) == 0).all() and no_risk().allows(known, 0).all()
    assert Risk(known, [True] * 40, 5, set()).allows(known, 0.2).all()  # all have the least risk


def test_the_best_report_of_a_trial_counts_not_the_last():
    """Settings below 0.5 are the best in epoch 1 and the worst in epoch 2."""
    built, proposed = build_searcher(experiment_of("forest", num_samples=100), space_of(x=tune.uniform(0, 1))), []
    for number in range(100):
        proposed.append(x := built.suggest(trial := f"{number:05d}")["x"])
        for epoch, loss in ((1, 1.0 if x < 0.5 else 2.0), (2, 3.0 if x < 0.5 else 1.9)):
            built.report(trial, {"training_iteration": epoch, "loss": loss + x / 1000})
    assert np.mean([x < 0.5 for x in proposed[20:]]) > 0.7


def test_the_trees_are_those_of_scikit_learns_forest():
    from sklearn.ensemble import ExtraTreesRegressor

    stream = np.random.default_rng(0)
    known, scores = stream.random((60, 3), dtype=np.float32), stream.random(60)
    whole = ExtraTreesRegressor(32, min_samples_leaf=2, max_features=0.8, bootstrap=True, random_state=5)
    whole.fit(known, scores)
    lazy = Forest(known, scores, 5, [1] * 60)
    for number in (31, 0, 7, 31):
        assert (lazy.tree(number).predict(known) == whole.estimators_[number].tree_.predict(known)).all()


@pytest.mark.parametrize(
    ("domain", "values", "expected"),
    [
        (tune.uniform(2, 6), [2, 3, 6], [[0], [0.25], [1]]),
        (tune.loguniform(1e-4, 1e-2), [1e-4, 1e-3, 1e-2], [[0], [0.5], [1]]),
        (tune.choice([64, 4, 16]), [4, 16, 64], [[0], [0.5], [1]]),
        (tune.choice(["a", "b"]), ["a", "b"], [[1, 0], [0, 1]]),
        (tune.randn(10, 2), [-3, 12], [[-3], [12]]),
    ],
)
def test_the_forest_gets_a_range_from_0_to_1_and_a_choice_of_numbers_by_rank(domain, values, expected):
    assert features({"x": domain}, {"x": values}) == pytest.approx(np.array(expected))


def test_a_trial_that_trained_longer_outweighs_those_that_paused(monkeypatch):
    """Settings below 0.5 are worse at first and better in the end; one in ten trials trains to the end."""

    def share_below(seed):
        space = space_of(x=tune.uniform(0, 1))
        searcher = ForestSearcher(experiment_of("forest", seed, num_samples=200), space, 200)
        proposed = []
        for number in range(200):
            proposed.append(x := searcher.suggest(trial := f"{number:05d}")["x"])
            epochs = 20 if number % 10 == 0 else 1
            loss = {(True, 1): 3.0, (False, 1): 2.0, (True, 20): 0.5, (False, 20): 1.0}[x < 0.5, epochs]
            searcher.report(trial, {"training_iteration": epochs, "loss": loss + x / 1000})
        return np.mean([x < 0.5 for x in proposed[40:]])

    weighed = np.mean([share_below(seed) for seed in range(4)])
    once = lambda known, scores, seed, weights: Forest(known, scores, seed, [1] * len(scores))  # noqa: E731
    monkeypatch.setattr("tuner.tuning.searchers.forest.Forest", once)
    assert weighed > 0.55 > 0.4 > np.mean([share_below(seed) for seed in range(4)])


def test_the_first_forest_learns_from_the_first_ten_trials(monkeypatch):
    learnt = []
    monkeypatch.setattr("tuner.tuning.searchers.forest.RANDOM_SHARE", 0)
    monkeypatch.setattr("tuner.tuning.searchers.forest.Forest", lambda *known: learnt.append(known) or Forest(*known))
    drive(build_searcher(experiment_of("forest", num_samples=40), wide()), 12)
    assert len(learnt[0][0]) == NUM_RANDOM


def test_a_forest_of_many_trials_learns_from_the_best_and_the_newest(monkeypatch):
    monkeypatch.setattr("tuner.tuning.searchers.forest.MAX_TRIALS", 40)
    space = space_of(x=tune.uniform(0, 1))
    built = build_searcher(experiment_of("forest", num_samples=100), space)
    settings = drive(built, score=lambda flat: abs(flat["x"] - 0.7))
    assert np.mean([abs(s["x"] - 0.7) < 0.1 for s in settings[50:]]) > 0.3  # of random settings, 0.2


# random


@pytest.mark.parametrize(("searcher", "few"), [("random", 12), ("forest", 30), ("grid", 5)])
def test_a_search_with_more_samples_begins_with_the_same_settings(searcher, few):
    whole = settings_of(searcher, wide(), seed=8, num_samples=few)
    assert len(whole) == few and settings_of(searcher, wide(), seed=8, num_samples=2 * few)[:few] == whole


def test_random_multiplies_by_grid_search_as_ray_does():
    space = space_of(a=tune.grid_search([1, 2, 3]), b=tune.grid_search(["x", "y"]), lr=tune.uniform(0, 1))
    settings = settings_of("random", space, num_samples=4)
    assert len(settings) == 24
    assert Counter((s["a"], s["b"]) for s in settings) == Counter({(a, b): 4 for a in (1, 2, 3) for b in ("x", "y")})


def test_sample_from_reads_the_other_parameters_and_is_seeded():
    space = space_of(
        width=tune.choice([8, 16, 32]),
        half=tune.sample_from(lambda spec: spec.config.width // 2),
        noise=tune.sample_from(lambda spec: float(np.random.uniform()) + random.random()),
    )
    first = settings_of("random", space, seed=2)
    assert all(setting["half"] == setting["width"] // 2 for setting in first)
    assert len({setting["noise"] for setting in first}) == len(first)
    assert settings_of("random", space, seed=2) == first


# grid


def test_a_grid_is_tried_without_repetition_and_no_further_than_its_size():
    space = space_of(a=tune.choice([1, 2, 3]), b=tune.uniform(0, 1), c={"d": tune.grid_search(["x", "y"])})
    built = build_searcher(experiment_of("grid", num_samples=1000), space)
    assert built.num_settings == built.size == 3 * 5 * 2
    settings = drive(built, num=35)
    assert built.exhausted
    flat = [tuple(dict(domains.leaves(setting)).values()) for setting in settings]
    assert len(flat) == 30 and set(flat) == set(itertools.product([1, 2, 3], [0, 0.25, 0.5, 0.75, 1], "xy"))


def test_a_part_of_a_grid_is_drawn_without_repetition():
    assert sorted(shuffled(300, seed=1)) == list(range(300)) != list(shuffled(300, seed=1))
    assert len({index for _, index in zip(range(50), shuffled(10**12, seed=1), strict=False)}) == 50


# refine


def test_refine_proposes_nothing_new_until_its_first_half_has_ended():
    built = build_searcher(experiment_of("refine", num_samples=6), wide())
    assert all(built.suggest(f"{i:05d}") for i in range(3))
    for i in range(2):
        assert built.suggest("00003") is None
        built.complete(f"{i:05d}", {"training_iteration": 1, "loss": float(i)})
    assert built.suggest("00003") is None
    built.complete("00002", {"training_iteration": 1, "loss": 9.0})
    assert built.suggest("00003")


@pytest.mark.parametrize(("mode", "best"), [("min", 1), ("max", 2)])
def test_the_second_half_of_refine_changes_one_parameter_of_the_best(mode, best):
    built = build_searcher(experiment_of("refine", num_samples=8, mode=mode), wide())
    first = [built.suggest(f"{i:05d}") for i in range(4)]
    for i, loss in enumerate([5.0, 1.0, 9.0, math.nan]):
        built.report(f"{i:05d}", {"training_iteration": 1, "loss": loss})
        built.complete(f"{i:05d}")
    centre, declared = dict(domains.leaves(first[best])), dict(domains.leaves(wide().params))
    order = []
    for i in range(4, 8):
        flat = dict(domains.leaves(built.suggest(f"{i:05d}")))
        (changed,) = [name for name in flat if flat[name] != centre[name]]
        assert flat[changed] in domains.neighbours(declared[changed], centre[changed])
        order.append(list(declared).index(changed))
    assert order != sorted(order)  # the neighbours are shuffled


def test_refine_with_no_good_first_half_goes_on_at_random():
    settings = settings_of("refine", wide(), num_samples=8)
    failed = drive(build_searcher(experiment_of("refine", num_samples=8), wide()), score=lambda flat: math.inf)
    assert len(failed) == 8 and failed[:4] == settings[:4]
    assert failed == settings_of("random", wide(), num_samples=8)


def test_refine_never_proposes_a_setting_twice_while_neighbours_are_left():
    settings = settings_of("refine", wide(), num_samples=40)
    assert len({tuple(dict(domains.leaves(s)).values()) for s in settings}) == 40
