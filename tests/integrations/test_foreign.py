"""Functions and scripts that were written for Ray Tune or Optuna: what they return, report and ask for."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import optuna
import pytest
import ray.tune.examples
import torch
from journals import read
from ray import cloudpickle, tune
from tiers import further

from tuner import Space, load_best, search
from tuner.engine.workers.reports import Reporter
from tuner.integrations import optuna as integration
from tuner.integrations.optuna import with_trial
from tuner.spec.script import in_trial
from tuner.spec.space_objects import code_digest
from tuner.tuning.trial import metrics_of

ROOT = Path(__file__).parents[2]
PARAMS = {"x": tune.uniform(-1, 1), "kind": tune.choice([{"name": "a", "depth": tune.randint(1, 5)}])}
QUICK = {"wandb": "disabled", "num_samples": 3, "max_concurrent_trials": 1}


@pytest.mark.parametrize("output", [0, 1.5, np.float64(2), torch.tensor(4.0)])
def test_a_number_that_a_function_returns_is_the_searchs_metric(output):
    got = []
    Reporter(got.append, "accuracy")(metrics_of(output, len))
    assert got[0]["accuracy"] == float(output)


def test_several_numbers_that_a_function_returns_are_the_metrics_in_their_order():
    assert metrics_of((0.9, 3), len, ["accuracy", "size"]) == {"accuracy": 0.9, "size": 3}


@pytest.mark.parametrize("output", [(1.0, 2.0), "0.5", np.zeros(3), object()])
def test_what_is_no_metric_is_named(output):
    with pytest.raises(ValueError, match=f"returns a {type(output).__name__}: return one number"):
        metrics_of(output, len)


def test_a_report_of_another_process_is_refused(monkeypatch):
    reporter = Reporter(lambda metrics: None, "loss")
    monkeypatch.setattr("os.getpid", lambda: -1)  # as in a process that the trial forks
    with pytest.raises(RuntimeError, match="another process than the trial's; send the metric to the trial's own"):
        reporter({"loss": 1})


def test_a_returned_value_completes_its_trial(search_here, tmp_path):
    """ASHA would prune half of the trials at their only report; a resume judges them in the same way."""
    text = """
import os
from tuner import Space, tune
def train(config):
    assert os.environ["WANDB_MODE"] == "disabled"  # --wandb disabled holds for what a function logs by itself
    return config["x"]
space = Space(params={"x": tune.choice([3, 2, 1, 4])}, train=train)
"""
    (tmp_path / "returns.py").write_text(text)
    done = search_here(str(tmp_path / "returns.py"), "--searcher", "grid")
    assert [trial.status for trial in done.record.trials] == ["completed"] * 4, done.err
    assert all(event.get("final") for event in done.events if event["event"] == "report")
    again = search_here("", "--resume", "test")
    assert [trial.status for trial in again.record.trials] == ["completed"] * 4, again.err


def test_an_objective_that_uses_optunas_lazy_modules_can_be_sent():
    def lazy(trial):
        return optuna.integration.__name__

    lazy.__module__ = "__main__"  # sent by value, as a space's functions are
    train = cloudpickle.loads(cloudpickle.dumps(with_trial(lazy)))
    assert train.args[0](None) == "optuna.integration"


def objective(trial):
    x = trial.suggest_float("x", -1, 1)
    depth = trial.suggest_int("depth", 1, 4)
    for step in range(3):
        trial.report(x**2 + depth + step, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return x**2 + depth + (2 if trial.number else 3)


def test_a_parameter_that_the_space_lacks_is_named(monkeypatch):
    monkeypatch.setattr(integration.tune, "get_context", lambda: SimpleNamespace(get_trial_id=lambda: "00007"))
    with pytest.raises(ValueError, match=r"asks for 'depth', which is not in the space's params; they have x, y"):
        with_trial(objective)({"x": 0.5, "y": 1})


def test_a_changed_objective_changes_the_spaces_digest():
    one, other = (Space(params=PARAMS, train=with_trial(each)) for each in (objective, lambda trial: 1.0))
    assert code_digest(one) and code_digest(one) != code_digest(other)


def test_an_objective_is_searched_by_what_it_returns(here):
    space = Space(params=PARAMS, train=with_trial(objective), metric="value", max_epochs=3)
    result = search(space, **QUICK)
    assert result.state == "finished" and result.best.metrics["value"] == pytest.approx(
        result.best.config["x"] ** 2 + result.best.config["kind"]["depth"] + (2 if int(result.best.trial) else 3)
    )
    assert result.best.trial == result.trials.sort_values("best_value").trial.iloc[0]


def test_only_an_objective_that_reports_has_another_metric_for_the_pruner():
    def helper(trial):
        trial.report(1.0, 0)

    assert with_trial(lambda trial: helper(trial)).prune_by == ""  # not seen in a helper that is no global
    assert with_trial(objective).prune_by == with_trial(helper).prune_by == "intermediate_value"
    assert Space(params=PARAMS, train=with_trial(objective), mode="max").prune_mode == "max"
    assert Space(params=PARAMS, train=with_trial(objective), prune_by="own").prune_by == "own"


@pytest.mark.parametrize(("returned", "left"), [(1.0, None), (2.0, None), (3.0, ValueError), (None, None)])
def test_without_a_metric_for_the_pruner_an_objective_returns_what_it_has_reported(monkeypatch, returned, left):
    monkeypatch.setattr(integration.tune, "report", lambda metrics: None)
    trial = integration.ReportingTrial({})
    for step, value in enumerate((1.0, 2.0)):
        trial.report(value, step)
        trial.should_prune()
    if left:
        with pytest.raises(left, match="returns 3.0, which it has not reported: .* as prune_by='intermediate_value'"):
            trial.left_of(returned)
    else:
        assert trial.left_of(returned) is None


def test_an_objective_that_has_reported_nothing_returns_both_metrics(monkeypatch):
    with in_trial({"x": 0.5}, "value", compared="intermediate_value"):
        assert integration.ReportingTrial({"x": 0.5}).left_of(0.5) == {"value": 0.5, "intermediate_value": 0.5}


def test_an_objective_reports_the_compared_metric_and_returns_the_searched_one(here):
    space = Space(
        params=PARAMS, train=with_trial(objective), metric="value", prune_by="step value", max_epochs=3, num_samples=3
    )
    result = search(space, **QUICK | {"scheduler": "asha"})
    config, metrics = result.best.config, result.best.metrics
    assert metrics["value"] > config["x"] ** 2 + config["kind"]["depth"] + 1.9 and "step value" not in metrics
    reports = [event for event in read(result.folder / "journal.jsonl") if event["event"] == "report"]
    assert {event["epoch"] for event in reports if "value" in event["metrics"]} == {4}


def saving(config):
    Path("weights").write_text(str(config["x"]))
    Path("kept").mkdir(exist_ok=True)
    Path("kept/weights").write_text(str(config["x"]))
    tune.report({"loss": config["x"] + config["shift"]}, checkpoint=tune.Checkpoint.from_directory("kept"))


def test_a_tuner_is_searched_in_place_of_its_fit(here, capsys, monkeypatch):
    made = tune.Tuner(
        saving,
        param_space={"x": tune.uniform(0, 1), "shift": 2},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=2),
        run_config=tune.RunConfig(storage_path=str(here / "ray_results")),
    )
    monkeypatch.setattr(sys.modules["__main__"], "of_ray", made, raising=False)  # the script's variable
    result = search(made, wandb="disabled", max_concurrent_trials=1)
    best = result.best
    assert best.config["shift"] == 2 and best.metrics["loss"] == pytest.approx(best.config["x"] + 2)
    assert load_best(result.folder).checkpoint == result.folder / "best" / "checkpoint"
    with best.checkpoint.as_directory() as folder:
        assert float(Path(folder, "weights").read_text()) == best.config["x"]
    out = capsys.readouterr().out
    assert "NOTE: the Tuner: nothing limits the reports" in out
    assert f"tuner.search(of_ray, resume={result.folder.name!r}" in out
    again = search(made, resume=result.folder.name, num_samples=3)
    assert len(again.trials) == 3 and again.state == "finished"


# Script of Ray's own -> its lines that change, as (pattern, replacement); docs/moving.md has the whole table.
SEARCH = (r"tuner\.fit\(\)", "search(tuner, wandb='disabled')")
BEST = (r"results\.get_best_result\(\)", "results.best")
IMPORT = (r"(?m)^from ray import tune$", "from ray import tune; from tuner import search")


@pytest.mark.parametrize(
    "script",
    further(["pbt_function", "tune_basic_example", "hyperband_example", "custom_func_checkpointing",
             "hyperband_function_example", "logging_example"], 2),
)  # fmt: skip
def test_rays_own_examples_are_searched(script, tmp_path):
    text = Path(ray.tune.examples.__path__[0], f"{script}.py").read_text()
    for pattern, replacement in (IMPORT, SEARCH, BEST):
        text, changed = re.subn(pattern, replacement, text, count=1)
        assert changed, pattern
    (tmp_path / f"{script}.py").write_text(text)
    command = [sys.executable, f"{script}.py", "--smoke-test"]
    # Some of them call ray.init(), which joins a cluster that another test has started on this machine.
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "RAY_ADDRESS": "local"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert "Best hyperparameters" in ran.stdout
