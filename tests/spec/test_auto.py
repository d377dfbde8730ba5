"""`auto`: the pair is a function of the options and the space alone, is saved, and a resume keeps it."""

import dataclasses
import itertools
import json
from pathlib import Path

import asking
import pytest

from tuner.record.saved_experiment import load_experiment
from tuner.spec import auto
from tuner.spec.auto import SpaceTraits, choose
from tuner.spec.experiment import AUTO, CHOICES, PAIRS, Experiment, Options
from tuner.spec.space_objects import saves_checkpoints
from tuner.spec.spaces import find_space
from tuner.tuning import session
from tuner.tuning.checks import request as checking
from tuner.tuning.output import console

SPACES = Path(__file__).parents[1] / "spaces"
SAVES = SpaceTraits(saves_checkpoints=True)
LOSES = SpaceTraits(saves_checkpoints=False)
FOREST = SpaceTraits(saves_checkpoints=True, searchers=("random", "forest"))
MANY = auto.FEWEST_TO_PROMOTE
FEW = {"num_samples": MANY - 1}
GRIDS = dataclasses.replace(SAVES, grid_points=MANY, grid_size=4)


@pytest.mark.parametrize(
    ("options", "traits", "field", "value", "why"),
    [
        ({"num_samples": MANY}, SAVES, "scheduler", "asha-promotion", "20 trials or more and they save checkpoints"),
        ({"num_samples": 1}, GRIDS, "scheduler", "asha-promotion", "trials or more"),
        ({"num_samples": MANY, "searcher": "grid"}, GRIDS, "scheduler", "asha", "needs 20 trials"),
        (FEW, SAVES, "scheduler", "asha", "early and continues the best) needs 20 trials or more"),
        ({"num_samples": MANY}, LOSES, "scheduler", "asha", "the trials save no checkpoints"),
        ({"num_samples": 4}, LOSES, "scheduler", "asha", "needs 20 trials or more"),
        ({"num_samples": 3}, SAVES, "scheduler", "fifo", "(stops the worse trials early) needs 4 trials or more"),
        ({"num_samples": MANY, "max_epochs": 1}, SAVES, "scheduler", "fifo", "no rung lies before the last epoch"),
        ({"num_samples": MANY, "grace_period": 10}, SAVES, "scheduler", "fifo", "no rung lies before the last epoch"),
        ({"num_samples": MANY, "searcher": "refine"}, SAVES, "scheduler", "asha", "does not work with searcher refine"),
        ({"searcher": "bohb"}, SAVES, "scheduler", "bohb", "the only one that works with searcher bohb"),
        ({"brackets": 2}, SAVES, "scheduler", "asha-promotion", "the only one with --brackets"),
        ({"num_samples": 40}, FOREST, "searcher", "forest", "--num-samples is 40 or more"),
        ({"num_samples": 39}, FOREST, "searcher", "random", "what to try next) needs --num-samples 40 or more"),
        ({"num_samples": 40, "scheduler": "asha"}, FOREST, "searcher", "forest", "--num-samples is 40 or more"),
        ({"num_samples": 40, "scheduler": "fifo"}, FOREST, "searcher", "random", "forest was not measured with fifo"),
        ({"num_samples": 9, "start_from": ["a"]}, FOREST, "searcher", "forest", "because it learns from past trials"),
        ({"num_samples": 40}, SAVES, "searcher", "random", "cannot propose every parameter"),
        ({"max_epochs": 10}, SAVES, "grace_period", 1, ""),
        ({"max_epochs": 52}, SAVES, "grace_period", 2, "grace period 2"),
        ({"max_epochs": 200}, SAVES, "grace_period", 8, "grace period 8"),
        ({"max_epochs": 200, "scheduler": "asha"}, SAVES, "grace_period", 1, ""),
        ({"max_epochs": 200, "grace_period": 3}, SAVES, "grace_period", 3, ""),
    ],
)
def test_the_pair_and_the_grace_period_suit_the_search_and_the_reason_is_one_line(options, traits, field, value, why):
    experiment, reason = choose(Options(**options), traits)
    assert getattr(experiment, field) == value and why in reason
    assert "\n" not in reason and ("grace period" in reason) == ("grace period" in why)


def test_what_is_named_is_kept_and_the_other_one_works_with_it():
    for searcher, scheduler in itertools.product(("auto", *CHOICES["searcher"]), ("auto", *CHOICES["scheduler"])):
        if AUTO not in (searcher, scheduler) and scheduler not in PAIRS[searcher]:
            continue
        for num_samples, max_epochs, traits in itertools.product((1, MANY), (1, 10), (SAVES, LOSES)):
            options = Options(searcher=searcher, scheduler=scheduler, num_samples=num_samples, max_epochs=max_epochs)
            chosen, why = choose(options, traits)
            assert searcher in (AUTO, chosen.searcher) and scheduler in (AUTO, chosen.scheduler)
            assert chosen.scheduler in PAIRS[chosen.searcher]
            assert bool(why) == (AUTO in (searcher, scheduler))
            assert choose(options, traits) == (chosen, why)


@pytest.mark.parametrize(("space", "saves"), [("tiny.py", True), ("functions.py", False), ("troubled.py", True)])
def test_a_task_saves_checkpoints_and_a_functions_text_tells(space, saves):
    assert saves_checkpoints(find_space(str(SPACES / space)).space) is saves


# --- a search ---------------------------------------------------------------------------------------------------------


def begun(tmp_path, *options):
    """The folder of a search that has just started."""
    words = ["--space", SPACES / "tiny.py", "--results", tmp_path, "--name", "mine", "--wandb", "disabled"]
    request = asking.request_of(*words, *options)
    session.make_folder(request.experiment)
    session.open_journal(request).close()
    return request.experiment.folder


def test_the_pair_is_saved_as_if_it_had_been_named(tmp_path):
    folder = begun(tmp_path, "--num-samples", "20")
    document = json.loads((folder / "experiment.json").read_text())
    assert (document["options"]["searcher"], document["options"]["scheduler"]) == ("random", "asha-promotion")
    assert document["options"]["reduction_factor"] == 2 and document["auto"].startswith("searcher random (")
    assert type(load_experiment(folder)[0]) is Experiment


@pytest.mark.parametrize("options", [(), ("--num-samples", "60"), ("--searcher", "auto", "--scheduler", "auto")])
def test_a_resume_keeps_the_pair_whatever_auto_would_choose_now(tmp_path, monkeypatch, options):
    before = load_experiment(begun(tmp_path))[0]
    assert (before.searcher, before.scheduler) == ("random", "asha")
    later = Experiment(searcher="grid", scheduler="fifo"), "a later version"
    monkeypatch.setattr(checking, "choose", lambda *_: later)
    request = asking.request_of("--resume", "mine", "--results", tmp_path, "--wandb", "disabled", "--trust", *options)
    now = request.experiment
    assert (now.searcher, now.scheduler, now.reduction_factor) == ("random", "asha", 2)
    assert not [line for line in console.heading(request) if "automatically" in line]
