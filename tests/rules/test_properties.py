"""What holds for any search: any order of reports, any values, any cut, any options."""

import dataclasses
import math
import tempfile
from pathlib import Path

import hypothesis.strategies as some
from by_hand import CONTINUE, STOP, Search, with_trials
from hypothesis import given, settings

from tuner.errors import RequestError
from tuner.record.reading import read
from tuner.record.saved_experiment import load_experiment, save_experiment
from tuner.spec.experiment import CHOICES, PAIRS, Experiment, option

LIMITS = settings(deadline=None, max_examples=60)
SHAPES = some.sampled_from([(8, 1, 2), (9, 1, 3), (9, 1, 1.5), (5, 5, 2), (10, 2, 2.0), (1, 1, 4)])
VALUES = some.floats(allow_nan=True, allow_infinity=True) | some.integers(-3, 3) | some.sampled_from([0.0, -0.0, 1.0])


@some.composite
def searches(draw):
    """Options of a search, and its reports: (number of the trial among those alive, value)."""
    most, grace, reduction = draw(SHAPES)
    choices = {
        "scheduler": draw(some.sampled_from(["asha", "median", "fifo"])),
        "mode": draw(some.sampled_from(["min", "max"])),
        "max_epochs": most,
        "grace_period": grace,
        "reduction_factor": reduction,
    }
    return choices, draw(some.lists(some.tuples(some.integers(0, 3), VALUES), min_size=1, max_size=40))


def played(search, turns, alive=None, epochs=None, num_begun=0):
    """Reports in the order of the turns, four trials alive at a time; yields each with what was decided."""
    alive, epochs = list(alive or ()), dict(epochs or {})
    for turn, value in turns:
        while len(alive) < 4:
            alive.append(f"{num_begun:05d}")
            num_begun += 1
        trial = alive[turn]
        epochs[trial] = epochs.get(trial, 0) + 1
        action = search.report(trial, epochs[trial], loss=value)
        if action == STOP:
            alive.remove(trial)
        yield action, (list(alive), dict(epochs), num_begun)


def untimed(events):
    return [{name: value for name, value in event.items() if name not in ("time", "crc")} for event in events]


@LIMITS
@given(searches())
def test_every_report_is_judged_and_what_is_no_number_stops_its_trial(made):
    choices, turns = made
    with tempfile.TemporaryDirectory() as folder:
        search = Search(Path(folder) / "journal.jsonl", **choices)
        actions = [action for action, _ in played(search, turns)]
        events = read(search.path)
    assert set(actions) <= {CONTINUE, STOP}
    reports = [event for event in events if event["event"] == "report"]
    decisions = {(event["trial"], event["epoch"]): event for event in events if event["event"] == "decision"}
    assert len(reports) == len(actions)
    for report, action in zip(reports, actions, strict=True):
        decision = decisions.get((report["trial"], report["epoch"]))
        value = report["metrics"]["loss"]
        if action == STOP:
            assert decision is not None and decision["action"] == "stop" and decision["reason"]
        if not math.isfinite(value):
            assert action == STOP and "diverged" in decision["reason"]
        elif report["epoch"] >= choices["max_epochs"]:
            assert action == STOP and "trained its" in decision["reason"]


@LIMITS
@given(searches(), some.integers(0, 39))
def test_a_search_cut_anywhere_goes_on_as_an_unbroken_one(made, cut):
    choices, turns = made
    cut = min(cut, len(turns) - 1)
    with tempfile.TemporaryDirectory() as folder:
        whole = Search(Path(folder) / "whole", **choices)
        actions, states, lengths = [], [], []
        for action, state in played(whole, turns):
            actions.append(action)
            states.append(state)
            lengths.append(len(read(whole.path)))
        events = read(whole.path)
        alive, epochs, num_begun = states[cut]
        resumed = Search(Path(folder) / "resumed", history=with_trials(events[: lengths[cut]]), **choices)
        after = [action for action, _ in played(resumed, turns[cut + 1 :], alive, epochs, num_begun)]
        rest = untimed(read(resumed.path))
    assert after == actions[cut + 1 :]
    assert rest == untimed(events[lengths[cut] :])


def values_of(field):
    """Right and wrong values of an option alike."""
    choices = [some.sampled_from(CHOICES[field.name])] if CHOICES[field.name] else []
    kinds = {
        "int": [some.integers(-2, 20), some.integers(0, 2**33)],
        "float": [some.floats(allow_nan=True, allow_infinity=True), some.integers(-1, 8)],
        "str": [some.text(max_size=6), some.sampled_from(["30m", "90s", "a", "x/y", "s3://b"])],
        "bool": [some.booleans()],
    }
    named = [values for kind, some_values in kinds.items() if kind in str(field.type) for values in some_values]
    return some.one_of(choices + named)


@some.composite
def options(draw):
    fields = draw(some.lists(some.sampled_from(dataclasses.fields(Experiment)), max_size=4, unique_by=lambda f: f.name))
    searcher = draw(some.sampled_from(sorted(PAIRS)))
    chosen = {"searcher": searcher, "scheduler": draw(some.sampled_from(PAIRS[searcher]))}
    return chosen | {field.name: draw(values_of(field)) for field in fields}


@settings(deadline=None, max_examples=400)
@given(options())
def test_an_experiment_is_refused_by_an_options_name_or_read_back_as_it_was(choices):
    try:
        experiment = Experiment(**choices)
    except RequestError as error:
        assert any(option(name) in str(error) for name in choices) and "\n" not in str(error)
        return
    with tempfile.TemporaryDirectory() as folder:
        save_experiment(experiment, Path(folder), {"facts": 1})
        assert load_experiment(Path(folder)) == (experiment, {"facts": 1})
