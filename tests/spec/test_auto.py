"""`auto`: the pair is a function of the options and the space alone, is saved, and a resume keeps it."""

import dataclasses
import itertools
import json
from pathlib import Path

import asking
import pytest

from tuner.record.journal import Journal
from tuner.record.saved_experiment import load_experiment, save_experiment
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
MANY = auto.FEWEST_TO_PROMOTE


@pytest.mark.parametrize(
    ("options", "traits", "scheduler", "why"),
    [
        ({"num_samples": MANY}, SAVES, "asha-promotion", f"there are {MANY} trials or more and they save checkpoints"),
        ({"num_samples": 1}, dataclasses.replace(SAVES, grid_points=MANY), "asha-promotion", "trials or more"),
        ({"num_samples": MANY, "searcher": "grid"}, dataclasses.replace(SAVES, grid_size=4), "asha", "needs 20 trials"),
        ({"num_samples": MANY - 1}, SAVES, "asha", f"early and continues the best) needs {MANY} trials or more"),
        ({"num_samples": MANY}, LOSES, "asha", "the trials save no checkpoints"),
        ({"num_samples": MANY, "max_epochs": 1}, SAVES, "fifo", "no rung lies before the last epoch"),
        ({"num_samples": MANY, "grace_period": 10}, SAVES, "fifo", "no rung lies before the last epoch"),
        ({"num_samples": MANY, "searcher": "refine"}, SAVES, "asha", "does not work with searcher refine"),
        ({"searcher": "bohb"}, SAVES, "bohb", "the only one that works with searcher bohb"),
        ({"brackets": 2}, SAVES, "asha-promotion", "the only one with --brackets"),
    ],
)
def test_the_scheduler_suits_the_search_and_the_reason_is_one_line(options, traits, scheduler, why):
    experiment, reason = choose(Options(**options), traits)
    assert experiment.scheduler == scheduler and why in reason and "\n" not in reason


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


@pytest.mark.parametrize(
    ("num_samples", "scheduler", "searchers", "searcher", "why"),
    [
        (40, "auto", ("random", "forest"), "forest", "--num-samples is 40 or more"),
        (39, "auto", ("random", "forest"), "random", "what to try next) needs --num-samples 40 or more"),
        (40, "asha", ("random", "forest"), "forest", "--num-samples is 40 or more"),
        (40, "fifo", ("random", "forest"), "random", "forest was not measured with fifo"),
        (40, "auto", ("random",), "random", "cannot propose every parameter"),
    ],
)
def test_a_long_search_that_prunes_learns_if_the_forest_can_propose_its_parameters(
    num_samples, scheduler, searchers, searcher, why
):
    traits = dataclasses.replace(SAVES, searchers=searchers)
    experiment, reason = choose(Options(num_samples=num_samples, scheduler=scheduler), traits)
    assert experiment.searcher == searcher and why in reason


@pytest.mark.parametrize(
    ("options", "grace"),
    [
        ({"max_epochs": 10}, 1),
        ({"max_epochs": 52}, 2),
        ({"max_epochs": 200}, 8),
        ({"max_epochs": 200, "scheduler": "asha"}, 1),
        ({"max_epochs": 200, "grace_period": 3}, 3),
    ],
)
def test_the_first_rung_lies_at_a_share_of_a_long_training_unless_it_is_named(options, grace):
    experiment, why = choose(Options(num_samples=MANY, **options), SAVES)
    assert experiment.grace_period == grace and ("grace period" in why) == (grace in (2, 8))


@pytest.mark.parametrize(("space", "saves"), [("tiny.py", True), ("late.py", False), ("saving.py", True)])
def test_a_task_saves_checkpoints_and_a_functions_text_tells(space, saves):
    assert saves_checkpoints(find_space(str(SPACES / space)).space) is saves


# --- a search ---------------------------------------------------------------------------------------------------------


def begun(tmp_path, *argv, space="tiny.py"):
    words = ["--space", SPACES / space, "--results", tmp_path, "--name", "mine", "--wandb", "disabled"]
    return asking.request_of(*words, *argv)


def saved(request):
    """The folder of a search that has just started."""
    session.make_folder(request.experiment)
    save_experiment(request.experiment, request.experiment.folder, request.facts)
    journal = Journal(request.experiment.folder / "journal.jsonl")
    session.journal_start(journal, request.experiment, [], request.loaded_space.sha256)
    journal.close()
    return request.experiment.folder


def test_the_pair_is_saved_as_if_it_had_been_named(tmp_path):
    folder = saved(begun(tmp_path, "--num-samples", "20"))
    document = json.loads((folder / "experiment.json").read_text())
    assert (document["options"]["searcher"], document["options"]["scheduler"]) == ("random", "asha-promotion")
    assert document["options"]["reduction_factor"] == 2 and document["auto"].startswith("searcher random (")
    assert type(load_experiment(folder)[0]) is Experiment


def resumed(folder, *argv):
    """The request of `--resume` with these options, checked as the command checks it."""
    words = ["--resume", folder.name, "--results", str(folder.parent), "--wandb", "disabled", *argv]
    return asking.request_of(*words, "--trust")


@pytest.mark.parametrize("options", [(), ("--num-samples", "60"), ("--searcher", "auto", "--scheduler", "auto")])
def test_a_resume_keeps_the_pair_whatever_auto_would_choose_now(tmp_path, monkeypatch, options):
    folder = saved(begun(tmp_path))
    before = load_experiment(folder)[0]
    assert (before.searcher, before.scheduler) == ("random", "asha")
    monkeypatch.setattr(
        checking, "choose", lambda *_: (Experiment(searcher="grid", scheduler="fifo"), "a later version")
    )
    request = resumed(folder, *options)
    now = request.experiment
    assert (now.searcher, now.scheduler, now.reduction_factor) == ("random", "asha", 2)
    assert not [line for line in console.heading(request) if "automatically" in line]
