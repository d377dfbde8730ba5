"""An experiment with a wrong value cannot be built; what is saved is read back; rungs are Ray's."""

import dataclasses
import itertools
import json
import math
import os
import tempfile
from pathlib import Path

import hypothesis.strategies as some
import pytest
from hypothesis import given, settings
from ray.tune.schedulers import AsyncHyperBandScheduler

from tuner.errors import RequestError
from tuner.record.format import FIELD, FORMAT
from tuner.record.saved_experiment import digest, latest_experiment, load_experiment, save_experiment
from tuner.spec.experiment import CHOICES, PAIRS, Experiment
from tuner.spec.option_values import option

WRONG = [
    ("num_samples", 0), ("num_samples", 10**299), ("num_samples", "10"), ("num_samples", 1.5), ("num_samples", True),
    ("num_samples", None), ("max_epochs", 1_000_001), ("grace_period", 11), ("reduction_factor", 0.5),
    ("reduction_factor", math.inf), ("reduction_factor", math.nan), ("reduction_factor", 1 + 1e-15),
    ("reduction_factor", [2]), ("searcher", ""), ("searcher", ["random"]), ("mode", "MIN"), ("mode", None),
    ("strategy", "dpp"), ("precision", "fp8"), ("on_oom", "shrnk"), ("wandb", "on"), ("workers_per_trial", 10**9),
    ("cpus_per_trial", 0), ("cpus_per_trial", 1.5), ("cpus_per_trial", math.nan), ("cpus_per_trial", {}),
    ("gpus_per_trial", -0.5), ("gpus_per_trial", 1.5), ("max_concurrent_trials", -1), ("seed", -1), ("seed", 2**32),
    ("priority", 101), ("brackets", 0), ("brackets", 1.5), ("time_budget", "0s"), ("time_budget", "1h30m"),
    ("time_budget", "infm"), ("time_budget", "1m\n2m"), ("time_budget", "9" * 400 + "s"), ("trial_timeout", "-1s"),
    ("name", "../x"), ("name", ".hidden"), ("name", "-x"), ("name", "x\n"), ("name", 7), ("max_failures", -1),
    ("metric", "x" * 5000), ("tensorboard", 1), ("space", ["cifar"]),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_value_is_refused_by_its_options_name(field, value):
    with pytest.raises(RequestError) as refused:
        Experiment(**{field: value})
    assert str(refused.value).startswith(option(field)) and "\n" not in str(refused.value)


def values_of(field):
    """Right and wrong values of an option alike."""
    choices = [some.sampled_from(CHOICES[field.name])] if CHOICES[field.name] else []
    kinds = {
        "int": [some.integers(-2, 20), some.integers(0, 2**33)],
        "float": [some.floats(allow_nan=True, allow_infinity=True), some.integers(-1, 8)],
        "str": [some.text(max_size=6), some.sampled_from(["30m", "90s", "a", "x/y", "s3://b"])],
        "bool": [some.booleans()],
    }
    return some.one_of(
        choices + [values for kind, listed in kinds.items() if kind in str(field.type) for values in listed]
    )


@some.composite
def options(draw):
    fields = draw(some.lists(some.sampled_from(dataclasses.fields(Experiment)), max_size=4, unique_by=lambda f: f.name))
    searcher = draw(some.sampled_from(sorted(PAIRS)))
    chosen = {"searcher": searcher, "scheduler": draw(some.sampled_from(PAIRS[searcher]))}
    return chosen | {field.name: draw(values_of(field)) for field in fields}


@settings(deadline=None, max_examples=60)
@given(options())
def test_any_options_are_refused_by_name_or_read_back_as_they_were(choices):
    try:
        experiment = Experiment(**choices)
    except RequestError as error:
        assert any(option(name) in str(error) for name in choices) and "\n" not in str(error)
        return
    with tempfile.TemporaryDirectory() as folder:
        save_experiment(experiment, Path(folder), {"facts": 1})
        assert load_experiment(Path(folder)) == (experiment, {"facts": 1})


def test_a_time_budget_is_read_in_seconds():
    budgets = {"": None, "90s": 90, "30m": 1800, "2h": 7200, "0.5m": 30}
    assert {budget: Experiment(time_budget=budget).time_budget_s for budget in budgets} == budgets


def test_a_pair_is_taken_where_the_table_has_it():
    for searcher, scheduler in itertools.product(CHOICES["searcher"], CHOICES["scheduler"]):
        if scheduler in PAIRS[searcher]:
            assert Experiment(searcher=searcher, scheduler=scheduler).searcher == searcher
            continue
        with pytest.raises(RequestError, match=f"{searcher} does not work with --scheduler {scheduler}") as refused:
            Experiment(searcher=searcher, scheduler=scheduler)
        assert all(name in str(refused.value) for name in PAIRS[searcher])


@pytest.mark.parametrize("reduction", [2, 3, 4, 5, 10, 1.5, 2.5, 2.0, 1.1])
def test_rungs_are_those_of_rays_asha(reduction):
    for grace in (1, 2, 3, 4, 5, 7, 10, 27):
        for most in (*range(grace, 130), 243, 256, 512, 625, 729, 1000, 1024, 2187, 3125, 10_000):
            if most < grace:
                continue
            ours = Experiment(max_epochs=most, grace_period=grace, reduction_factor=reduction).rungs()
            rays = AsyncHyperBandScheduler(max_t=most, grace_period=grace, reduction_factor=reduction)
            theirs = list(dict.fromkeys(math.ceil(at) for at, _ in reversed(rays._brackets[0]._rungs)))
            assert ours == theirs, (most, grace, reduction)


def test_an_unknown_experiment_is_told_with_the_nearest_or_the_newest(tmp_path):
    for number in range(8):
        folder = tmp_path / f"search{number}"
        folder.mkdir()
        save_experiment(Experiment(), folder, {})
        os.utime(folder / "experiment.json", (number, number))
    with pytest.raises(RequestError, match=r"no experiment 'saerch3' in .*; did you mean 'search3'\?"):
        load_experiment(tmp_path / "saerch3")
    newest = "the newest there: search7, search6, search5, search4, search3 and 3 more"
    with pytest.raises(RequestError, match=newest):
        load_experiment(tmp_path / "zzzzzzzz")
    (tmp_path / "search3" / "journal.jsonl").touch()
    with pytest.raises(RequestError, match=r"journal.jsonl is a file, .* did you mean .*/search3\?"):
        load_experiment(tmp_path / "search3" / "journal.jsonl")
    with pytest.raises(RequestError, match=r"best is not an experiment's folder; did you mean .*/search3\?"):
        load_experiment(tmp_path / "search3" / "best")


MANY_RUNGS = {"max_epochs": 1_000_000, "reduction_factor": 1.0000001}  # refused before any list of them is built
BRACKETS = {"scheduler": "asha-promotion", "max_epochs": 9, "reduction_factor": 3}


def test_the_latest_experiment_is_the_one_last_written_to(tmp_path):
    for name in ("b", "a", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal.jsonl").touch()
        os.utime(tmp_path / name / "journal.jsonl", (1000, 1000 + 100 * (name == "a")))
    assert latest_experiment(tmp_path) == "a"
    with pytest.raises(RequestError, match="no experiment in"):
        latest_experiment(tmp_path / "a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers_per_trial": 2}, "--workers-per-trial 2: --strategy single trains in one process"),
        ({"strategy": "pipeline", "workers_per_trial": 3}, "give --strategy ddp, or leave out --workers-per-trial"),
        ({"strategy": "ddp", "workers_per_trial": 2, "cpus_per_trial": 3}, "--cpus-per-trial 3: each of --workers"),
        ({"strategy": "ddp", "workers_per_trial": 2, "gpus_per_trial": 1}, "give a multiple of 2, or auto"),
        ({"strategy": "ddp", "gpus_per_trial": 0.5}, "--gpus-per-trial 0.5: each of --workers-per-trial"),
        ({"scheduler": "asha", "brackets": 2}, "--brackets 2: --scheduler asha has no choice of brackets"),
        ({**MANY_RUNGS, "scheduler": "hyperband"}, "--reduction-factor 1.0000001 gives 138,155,113 rungs up to"),
        (MANY_RUNGS, "rungs up to --max-epochs 1000000: at most 100 are allowed; give 1.15 or more"),
        (BRACKETS | {"brackets": 4}, "--brackets 4: must be at most 3, the number of rungs up to --max-epochs 9"),
    ],
)
def test_what_does_not_go_together_is_refused(options, message):
    assert Experiment(**BRACKETS, brackets=3).brackets == 3
    assert len(Experiment(max_epochs=1_000_000, reduction_factor=1.15).rungs()) <= 100
    with pytest.raises(RequestError) as refused:
        Experiment(**options)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_an_experiment_json_cut_or_altered_at_any_byte_is_read_from_its_copy(tmp_path, caplog):
    saved = Experiment(space="x", seed=7, name="mine")
    save_experiment(saved, tmp_path, {"space": {"params": {"lr": "0..1"}}})
    path = tmp_path / "experiment.json"
    content = path.read_bytes()
    assert load_experiment(tmp_path)[0] == saved and not caplog.text
    for at in range(0, len(content) - 2, 7):
        altered = bytearray(content)
        altered[at] ^= 0x15
        for damaged in (content[:at], bytes(altered)):
            path.write_bytes(damaged)
            assert load_experiment(tmp_path) == (saved, {"space": {"params": {"lr": "0..1"}}})
    assert "experiment.json is damaged" in caplog.text and "its copy .experiment.json.copy is used" in caplog.text
    path.unlink()
    assert load_experiment(tmp_path)[0] == saved


def test_an_experiment_that_is_older_than_an_option_has_its_default_and_an_unknown_option_is_refused(tmp_path):
    def options(**changed):
        document = {FIELD: FORMAT, "options": {"metric": "accuracy", "mode": "max"} | changed}
        (tmp_path / "experiment.json").write_text(json.dumps({**document, "sha256": digest(document)}))
        return load_experiment(tmp_path)[0]

    assert options() == Experiment(metric="accuracy", mode="max")
    with pytest.raises(RequestError, match="not those of a search"):
        options(warp=9)
