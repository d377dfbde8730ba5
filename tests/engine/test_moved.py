"""Tuners of scripts that were written for Ray Tune, as a space and options; nothing is searched."""

import re
from argparse import Namespace
from datetime import timedelta

import pytest
from ray import tune
from ray.tune import schedulers
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch

from tuner.engine.controller.trials import population_of
from tuner.engine.moved import BEST, MOST_REPORTS, read_tuner
from tuner.errors import RequestError
from tuner.space import Space
from tuner.spec import parameters
from tuner.spec.experiment import Experiment
from tuner.training.task import whole_config

SPACE = {"x": tune.uniform(0, 1), "steps": 5}
STOPPER, CHANGING = tune.stopper.MaximumIterationStopper(3), schedulers.ResourceChangingScheduler()


def train(config):
    return {"loss": config["x"], "seen": config.get("layers")}


class Stepwise(tune.Trainable):
    def setup(self, config):
        self.seen = config["args"].fast

    def step(self):
        return {"loss": 0.0}


@pytest.fixture
def of(tmp_path):
    """`of(trainable=..., run=..., param_space=..., **tune_config)` moves such a Tuner."""

    def move(trainable=train, run=None, param_space=SPACE, options=None, **config):
        config = {"metric": "loss", "mode": "max", **config}
        run_config = tune.RunConfig(storage_path=str(tmp_path), **(run or {}))
        settings = {"tune_config": tune.TuneConfig(**config), "run_config": run_config}
        return read_tuner(tune.Tuner(trainable, param_space=param_space, **settings), options or {})

    return move


def test_what_a_tuner_declares_becomes_the_space_and_its_options(of):
    callback = tune.Callback()
    run = dict(stop={"training_iteration": 50, "accuracy": 0.9, "done": True}, callbacks=[callback])
    scheduler = schedulers.ASHAScheduler(max_t=81, grace_period=3, reduction_factor=3)
    found = of(run=run, scheduler=scheduler, num_samples=7, time_budget_s=timedelta(minutes=2))
    space = found.space
    assert (space.metric, space.mode, space.num_samples, space.max_epochs) == ("loss", "max", 7, 50)
    assert (space.grace_period, space.reduction_factor) == (3, 3)
    assert space.stop == {"accuracy": 0.9} and space.callbacks == [callback] and space.constants == {"steps": 5}
    assert found.options["scheduler"] == "asha" and found.options["searcher"] == "random"
    assert found.options["time_budget"] == "120s" and found.notes == (BEST,)


def test_a_tuner_without_limits_is_told(of):
    found = of()
    assert found.options["scheduler"] == "fifo" and found.space.max_epochs == MOST_REPORTS
    assert "nothing limits the reports" in found.notes[1]
    assert of(options={"max_epochs": 3}).notes == (BEST,)


@pytest.mark.parametrize(
    ("scheduler", "name", "fields"),
    [
        (schedulers.HyperBandScheduler(max_t=27), "hyperband", {"max_epochs": 27, "reduction_factor": 3}),
        (schedulers.MedianStoppingRule("training_iteration", grace_period=4), "median", {"grace_period": 4}),
        (schedulers.MedianStoppingRule(grace_period=60), "median", {"grace_period": "auto"}),  # seconds
        (schedulers.ASHAScheduler(time_attr="time_total_s", max_t=3600), "asha", {"max_epochs": MOST_REPORTS}),
    ],
)
def test_schedulers(of, scheduler, name, fields):
    found = of(scheduler=scheduler)
    assert found.options["scheduler"] == name
    assert {field: getattr(found.space, field) for field in fields} == fields


def test_what_pbt_changes_may_be_a_list_or_a_function(of):
    changes = {"x": lambda: 0.75, "steps": [1, 2]}
    pbt = schedulers.PopulationBasedTraining
    scheduler = pbt("training_iteration", perturbation_interval=4, hyperparam_mutations=changes)
    found = of(scheduler=scheduler)
    assert found.options["perturbation_interval"] == 4 and set(found.space.mutations) == {"x", "steps"}
    assert found.space.mutations["steps"].categories == [1, 2]
    built = population_of(Experiment(space="s", scheduler="pbt"), found.space)
    assert built._hyperparam_mutations["x"]() == 0.75 and built._hyperparam_mutations["steps"] == [1, 2]


def test_searchers_their_points_and_their_limit(of):
    found = of(search_alg=ConcurrencyLimiter(OptunaSearch(points_to_evaluate=[{"x": 0.5}]), max_concurrent=3))
    assert found.options["searcher"] == "optuna" and found.options["max_concurrent_trials"] == 3
    assert found.space.points == [{"x": 0.5}]
    assert of(search_alg=BasicVariantGenerator(points_to_evaluate=[{"x": 0.1}])).space.points == [{"x": 0.1}]


def test_the_metric_may_be_the_schedulers_or_the_searchers(of):
    scheduler = schedulers.ASHAScheduler(metric="score", mode="max")
    for part in (dict(scheduler=scheduler), dict(search_alg=OptunaSearch(metric="score", mode="max"))):
        found = of(metric=None, mode=None, **part)
        assert (found.space.metric, found.space.mode) == ("score", "max")
    several = dict(metric=["loss", "gain"], mode=["min", "max"])
    found = of(metric=None, mode=None, search_alg=OptunaSearch(**several), run=dict(stop={"loss": 0.1}))
    assert list(found.space.metric) == several["metric"] and list(found.space.mode) == several["mode"]


def test_failures_checkpoints_and_the_folder_are_the_tuners(of, tmp_path):
    run = dict(
        failure_config=tune.FailureConfig(max_failures=-1), checkpoint_config=tune.CheckpointConfig(num_to_keep=1)
    )
    found = of(run=run)
    assert found.options["max_failures"] == 1_000_000 and found.options["keep_checkpoints"] == 1
    assert found.options["results"] == str(tmp_path)
    assert "is retried after the loss of its process, but not after an error" in found.notes[1]
    assert "keep_checkpoints" not in of(run=run, options={"scheduler": "pbt"}).options
    assert not {"max_failures", "keep_checkpoints"} & of().options.keys()
    several = dict(checkpoint_config=tune.CheckpointConfig(num_to_keep=2))  # all stay, rather than fewer
    assert "keep_checkpoints" not in of(run=several).options


@pytest.mark.parametrize(
    ("given", "note"),
    [
        (dict(trial_name_creator=str, run=dict(name="n", log_to_file=True, verbose=0)),
         "not used: TuneConfig trial_name_creator; RunConfig name, verbose, log_to_file"),
        (dict(run=dict(sync_config=tune.SyncConfig(sync_artifacts=True),
                       failure_config=tune.FailureConfig(fail_fast=True),
                       checkpoint_config=tune.CheckpointConfig(1, "acc", checkpoint_at_end=True))),
         "not used: SyncConfig sync_artifacts; FailureConfig fail_fast; "
         "CheckpointConfig checkpoint_score_attribute, checkpoint_at_end"),
        (dict(run=dict(checkpoint_config=tune.CheckpointConfig(1, "loss"))), None),
        (dict(run=dict(checkpoint_config=tune.CheckpointConfig(2, "loss"))), "not used: CheckpointConfig num_to_keep"),
        (dict(run=dict(checkpoint_config=tune.CheckpointConfig(2)),
              scheduler=schedulers.PopulationBasedTraining("training_iteration", hyperparam_mutations={"x": [1]})),
         "not used: CheckpointConfig num_to_keep"),
        (dict(scheduler=schedulers.ASHAScheduler(brackets=2, max_t=9)), "not used: AsyncHyperBandScheduler brackets"),
        (dict(scheduler=schedulers.ASHAScheduler(max_t=9, grace_period=3, reduction_factor=3)), None),
        (dict(scheduler=schedulers.MedianStoppingRule(grace_period=9)),
         "MedianStoppingRule counts time_total_s; here its counterpart counts reports"),
        (dict(scheduler=schedulers.MedianStoppingRule(grace_period=9)), "not used: MedianStoppingRule grace_period"),
        (dict(search_alg=OptunaSearch(seed=3)), "of OptunaSearch only the kind, points_to_evaluate and max_concurrent"),
        (dict(mode="min", run=dict(stop={"loss": 0.25})),
         "stop={'loss': 0.25} ends a trial at or below this; Ray would at or above it"),
        (dict(run=dict(stop={"loss": 0.25})), None),  # mode max
    ],
)  # fmt: skip
def test_what_a_search_does_not_use_of_a_tuner_is_said(of, given, note):
    """Ray's defaults, and what is used, are not named."""
    notes = [each for each in of(options={"max_epochs": 3}, **given).notes if each != BEST]
    assert any(each.startswith(note) for each in notes) if note else not notes


def test_a_basic_search_may_limit_its_trials(of):
    assert of(search_alg=BasicVariantGenerator(max_concurrent=3)).options["max_concurrent_trials"] == 3


def test_a_restored_tuner_is_refused(of, monkeypatch):
    made = tune.Tuner(train, param_space=SPACE, tune_config=tune.TuneConfig(metric="loss", mode="min"))
    made._local_tuner._is_restored = True
    with pytest.raises(RequestError, match=r"Ray has run a part of its trials: Tuner.restore\(...\).fit\(\) continues"):
        read_tuner(made, {})


def test_resources(of):
    assert of(tune.with_resources(lambda config: 1, {"cpu": 2, "gpu": 0.5})).options["gpus_per_trial"] == 0.5
    wrapped = tune.with_resources(tune.with_parameters(train), {"cpu": 3})
    assert of(wrapped).options["cpus_per_trial"] == 3
    assert of(tune.with_resources(Stepwise, {"cpu": 4})).options["cpus_per_trial"] == 4
    assert "cpus_per_trial" not in of().options


def test_what_a_space_cannot_hold_reaches_the_function_and_the_class(of):
    found = of(param_space={**SPACE, "layers": [64, 32]})
    assert found.space.train({"x": 0.25}) == {"loss": 0.25, "seen": [64, 32]}
    found = of(Stepwise, param_space={**SPACE, "args": Namespace(fast=True)})
    assert issubclass(found.space.train, Stepwise) and found.space.train({"x": 1}).seen is True


def test_domains_in_lists_and_tuples_are_searched_and_reach_the_function_there(of):
    inner, shared = {"kind": "dense", "width": tune.choice([4, 8]), "note": [1]}, [64, 32]
    space = {"x": tune.uniform(0, 1), "layers": [inner, 5, (tune.randint(1, 9), None)], "net": {"sizes": shared}}
    found = of(
        lambda config: {"loss": config["x"], "seen": config, **{"again": config["net"]["sizes"].append(1)}},
        param_space=space,
    )
    described = parameters.describe(found.space.declared)
    assert set(described) == {"x", "layers/0/width", "layers/2/0"} and described["layers/0/width"]["values"] == [4, 8]
    drawn = whole_config({"x": 0.5, "layers": {"0": {"width": 8}, "2": {"0": 3}}}, found.space.constants)
    for _ in range(2):  # each trial gets its own copies
        seen = found.space.train(drawn)["seen"]
        assert seen["layers"] == [{"kind": "dense", "width": 8, "note": [1]}, 5, (3, None)]
        assert seen["net"] == {"sizes": [64, 32, 1]} and shared == [64, 32]
    with pytest.raises(ValueError, match="parameter 'layers': a list with domains; write a dictionary of them"):
        Space(params={"layers": [tune.choice([1, 2])]}, train=train)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (dict(metric=None, mode=None), 'names no metric: give one, as search(tuner, metric="loss", mode="min")'),
        (dict(param_space={}), "no param_space"),
        (dict(search_alg=Namespace(searcher=1)), "no searcher Namespace: give another, as search(tuner, searcher='"),
        (dict(scheduler=CHANGING), "no scheduler ResourceChangingScheduler: give another"),
        (dict(run={"stop": STOPPER}), "stop=MaximumIterationStopper, which tuner cannot use: limit the reports"),
        (
            dict(run={"stop": {"time_total_s": 60}}),
            "ends trials by time_total_s, which Ray measures: limit the reports",
        ),
    ],
)
def test_what_tuner_does_not_have_is_refused(of, given, text):
    with pytest.raises(RequestError, match=re.escape(text)):
        of(**given)


def test_the_callers_options_take_precedence(of):
    assert of(metric=None, mode=None, options={"metric": "loss", "mode": "max"}).space.mode == "max"
    of(scheduler=CHANGING, options={"scheduler": "asha"})
    limited = of(run={"stop": STOPPER}, options={"max_epochs": 5})
    assert limited.notes == (BEST, "stop=MaximumIterationStopper is not used")


def test_a_metric_that_ends_trials_may_have_a_slash_in_its_name(of):
    stop = {"val/acc": 0.85, "val": {"loss": 0.1}}
    options = of(run={"stop": {**stop, "training_iteration": 10}}, metric="val/loss").space.options
    assert options.stop == ("val/acc=0.85", "val/loss=0.1") and options.max_epochs == 10
    assert Experiment(space="x", metric="loss", stop=options.stop).limits == {"val/acc": 0.85, "val/loss": 0.1}
