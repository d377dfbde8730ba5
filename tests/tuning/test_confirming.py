"""Searches that train their best settings again with other seeds, by `--confirm`."""

import csv
import json
import statistics

import pytest

from tuner import load
from tuner.spec.constraints import aim_of
from tuner.training.task import trial_seed


def read_best(ran, name):
    return json.loads((ran.folder / "best" / name).read_text())


def test_a_finished_search_is_confirmed_and_its_best_mean_is_tested(search_here):
    first = search_here("tiny.py", "--num-samples", "5", "--max-epochs", "4", "--scheduler", "fifo")
    assert all(
        "how sure    The best two settings, of trials 0" in text for text in (first.out, repr(load(first.folder)))
    )
    assert "confirm     python -m tuner.run --resume test --results" in first.out and "--confirm 3\n" in first.out
    assert (
        "confirmed" not in read_best(first, "metrics.json")
        and "confirms" not in (first.folder / "trials.csv").read_text()
    )
    ran = search_here("", "--resume", "test", "--confirm", "2", "--confirm-seeds", "2")
    assert ran.code == 0, ran.err
    repeats = [trial for trial in ran.record.trials if trial.confirms]
    assert [trial.id for trial in repeats] == ["00005", "00006", "00007", "00008"]
    assert all(trial.last_epoch == 4 and trial.reason == "trained its 4 epochs" for trial in repeats)
    assert [trial.seed for trial in repeats] == [trial_seed(0, trial.id) for trial in repeats]
    ranked = sorted(first.record.trials, key=lambda trial: trial.best(aim_of("loss", "min", ())).metrics["loss"])
    assert [trial.confirms for trial in repeats] == [ranked[0].id, ranked[1].id] * 2
    assert all(trial.config == ran.trials[trial.confirms].config for trial in repeats)
    one, two = load(ran.folder).confirmed
    assert one.mean < two.mean and {one.trial, two.trial} == {ranked[0].id, ranked[1].id}
    own = [ran.trials[each].best(aim_of("loss", "min", ())).metrics["loss"] for each in one.trials]
    assert one.mean == pytest.approx(statistics.fmean(own)) and len(set(own)) == 2  # another seed, another value
    assert one.luck == pytest.approx(one.mean - ran.trials[one.trial].best(aim_of("loss", "min", ())).metrics["loss"])
    assert one.low < one.mean < one.high and one.best_probability + two.best_probability == pytest.approx(1)
    assert f"confirmed   trial {one.trial}: mean " in ran.out and "--confirm" not in ran.out
    assert f"(the setting of trial {one.trial}), epoch" in ran.out
    assert "confirmed   trial" in repr(load(ran.folder))
    # `best/` has the better of the winner's new trainings; only it is tested.
    config, metrics = read_best(ran, "config.json"), read_best(ran, "metrics.json")
    assert config["trial"] in one.trials and metrics["validation"]["loss"] == min(own) and metrics["test"]
    assert metrics["confirmed"]["done"] and metrics["confirmed"]["settings"][0]["mean"] == one.mean
    rows = {row["trial"]: row for row in csv.DictReader((ran.folder / "trials.csv").open())}
    assert (rows["00005"]["confirms"], rows["00005"]["confirms_seed"]) == (ranked[0].id, str(repeats[0].seed))
    assert float(rows[one.trial]["confirmed_mean"]) == one.mean and not rows["00005"]["confirmed_mean"]
    assert "<h2>Confirmed settings</h2>" in (ran.folder / "report.html").read_text()
    # A larger search confirms its best settings; those that were confirmed before are not trained again.
    more = search_here("", "--resume", "test", "--num-samples", "7")
    later = more.record.trials[9:]
    assert [trial.id for trial in later if not trial.confirms] == ["00009", "00010"]
    assert {trial.config["lr"] for trial in later if trial.confirms} <= {trial.config["lr"] for trial in later[:2]}
    assert more.record.confirmation.done


@pytest.mark.slow  # 13 s
def test_a_function_gets_its_seed_if_it_asks_for_one(search_here):
    ran = search_here("functions.py:noisy", "--confirm", "2", "--confirm-seeds", "2")
    assert ran.code == 0, ran.err
    for trial in ran.record.trials:
        noise = trial_seed(0, trial.id) % 1000 / 1000
        assert (
            trial.reports[0].metrics["loss"] == pytest.approx(trial.config["x"] + noise) and "seed" not in trial.config
        )
    winner = read_best(ran, "config.json")
    assert winner["config"]["seed"] == trial_seed(0, winner["trial"]) and "gets no seed" not in ran.out
    assert load(ran.folder).best.config == winner["config"]


@pytest.mark.slow  # 11 s
def test_a_function_without_a_seed_is_repeated_and_that_its_values_are_equal_is_said(search_here):
    ran = search_here("functions.py:unseeded", "--confirm", "2")
    assert "NOTE: --confirm 2: the function gets no seed, so --confirm repeats it unseeded" in ran.out
    assert "NOTE: no setting's value depends on the seed" in ran.out
    assert [each.luck for each in load(ran.folder).confirmed] == [None, None]


def test_population_based_training_cannot_be_confirmed(search_here):
    ran = search_here("tiny.py", "--scheduler", "pbt", "--searcher", "random", "--confirm", "1")
    assert ran.code == 2 and "--confirm 1: --scheduler pbt changes settings while trials train" in ran.err


def test_the_plan_says_what_the_confirmation_costs(search_here):
    ran = search_here("tiny.py", "--confirm", "3", "--dry-run", "--max-epochs", "4")
    assert "confirm     the best 3 settings again, each with 3 other seeds (at most 36 more epochs)" in ran.out
    ran = search_here("tiny.py", "--confirm", "3", "--dry-run", "--max-epochs", "4", "--epoch-budget", "70")
    assert "(at most 36 more epochs, for which up to half of the budget is kept back)" in ran.out
    assert "--epoch-budget 70: half of it is too little for the 36 epochs of --confirm; give 72 or more" in ran.out
