"""W&B's scripts in a trial: `wandb.config` has its parameters, `wandb.log` of the metric is a report."""

import sys
import types

import numpy as np
import pytest
import torch
from ray import tune

from tuner import RequestError
from tuner.integrations import wandb
from tuner.spec.script import in_trial
from tuner.spec.spaces import find_space

SWEEP = """
from tuner.integrations import wandb
wandb.login()
settings = {
    "method": "random",
    "metric": {"name": "loss", "goal": "minimize"},
    "parameters": {"learning_rate": {"min": 0.0, "max": 0.1}, "epochs": {"value": 2}},
}
def train(config=None):
    with wandb.init(config=config) as run:
        for epoch in range(wandb.config.epochs):
            wandb.log({"batch loss": 5.0})
            run.log({"loss": wandb.config.learning_rate / (epoch + 1), "epoch": epoch, "note": "text"})
if __name__ == "__main__":
    sweep_id = wandb.sweep(settings, project="p")
    wandb.agent(sweep_id, train, count=3)
"""


class Config(dict):
    """W&B's config, as far as scripts use it."""

    locked = ()

    def update(self, values, allow_val_change=False):
        super().update({k: v for k, v in dict(values).items() if k not in self.locked})

    def update_locked(self, values, user):
        self.locked = tuple(values)

    def __getattr__(self, name):
        return self[name]


class Run(types.SimpleNamespace):
    def __enter__(self):
        return self

    def __exit__(self, *failure):
        pass


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A stand-in for the wandb package."""
    module = types.ModuleType("wandb")

    def init(config=None, mode=None, **options):
        run = Run(config=Config(config or {}), mode=mode, summary={}, dir=str(tmp_path / "run" / "files"))
        run.log_model = lambda path: None
        module.run, module.config, module.summary = run, run.config, run.summary
        return run

    module.init, module.log, module.sweep = init, lambda data: module.logged.append(data), lambda *a, **k: "real"
    module.run = module.log_model = None
    module.logged, module.Image = [], lambda data: object()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def reports(monkeypatch):
    sent = []
    monkeypatch.setattr(tune, "report", sent.append)
    return sent


def test_the_config_is_the_trials_and_cannot_be_changed(fake, reports):
    with in_trial({"lr": 0.5}, "loss") as trial:
        run = wandb.init(project="p", config={"lr": 0.1, "width": 3})
        wandb.config.update({"lr": 9, "depth": 2})
        assert dict(wandb.config) == {"lr": 0.5, "width": 3, "depth": 2}
        assert run.mode == "disabled" and trial.reached


def test_the_runs_folder_lives_as_long_as_the_trial(fake, reports, tmp_path):
    with in_trial({"lr": 0.5}, "loss"):
        wandb.init()
        (tmp_path / "run" / "files" / "model.pt").touch()
        wandb.log_model("model.pt")
        assert wandb.run.dir == str(tmp_path / "run" / "files")
    assert not (tmp_path / "run").exists()


def test_a_log_with_the_metric_is_a_report(fake, reports):
    with in_trial({"lr": 0.5}, "val/loss"):
        run = wandb.init()
        wandb.log({"batch": 1.0})
        wandb.log({"batch": 2.0, "picture": wandb.Image(None), "note": "text"})
        wandb.log({"val/loss": torch.tensor([0.25]), "map": np.ones((2, 2)), "size": np.float32(2)}, step=7)
        run.log({"val/loss": 0.2}, commit=False)
        run.log({"accuracy": True})
        wandb.log()
    assert reports == [{"batch": 2.0, "val/loss": 0.25, "size": 2.0}, {"val/loss": 0.2, "accuracy": True}]


def test_a_metric_of_the_summary_is_the_report_of_the_end(fake, reports):
    for logged, expected in ({}, [{"error": 0.1}]), ({"error": 0.4}, [{"error": 0.4}]):
        reports.clear()
        with in_trial({"lr": 0.5}, "error") as trial:
            wandb.init()
            wandb.log(logged)
            wandb.summary["error"] = 0.1
            if trial.at_end:
                trial.at_end()
        assert reports == expected


def test_a_metric_that_is_never_logged_is_named_beside_what_is(fake, reports):
    with in_trial({"lr": 0.5}, "val_los") as trial:
        wandb.init()
        wandb.log({"val_loss": 1.0, "epoch": 1})
        with pytest.raises(ValueError, match="'val_los'; did you mean 'val_loss'.*logged val_loss, epoch; give"):
            trial.at_end()
        assert reports == []
        wandb.log({"val_los": 1.0})
        wandb.init()  # a further run of the script need not log it
        assert reports and trial.at_end is None


def test_a_sweep_is_the_space_of_its_file(fake, reports, tmp_path):
    """Under `if __name__ == "__main__":` too, where W&B's own examples have it; `count` is the number of settings."""
    path = tmp_path / "sweep.py"
    path.write_text(SWEEP)
    space = find_space(str(path)).space
    assert (space.metric, space.mode, space.num_samples) == ("loss", "min", 3)
    assert space.searched.keys() == {"learning_rate"} and space.constants == {"epochs": 2}
    with in_trial({"learning_rate": 0.04, "epochs": 2}, "loss"):
        space.train({"learning_rate": 0.04, "epochs": 2})
    assert reports == [{"batch loss": 5.0, "loss": 0.04 / n, "epoch": n - 1} for n in (1, 2)]
    assert fake.logged == []


def test_a_sweep_is_searched(tmp_path, search_here):
    path = tmp_path / "sweep.py"
    path.write_text(SWEEP)
    done = search_here(str(path), "--num-samples", "1")
    assert done.code == 0, done.err
    (trial,) = done.record.trials
    assert [report.metrics["loss"] for report in trial.reports] == [trial.config["learning_rate"] / n for n in (1, 2)]


def test_each_distribution_of_a_sweep_is_a_domain():
    given = {
        "a": {"values": ["x", "y"]},
        "b": {"min": 1, "max": 3},
        "c": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-1},
        "d": {"distribution": "log_uniform", "min": -3, "max": 0},
        "e": {"distribution": "q_log_uniform_values", "q": 8, "min": 32, "max": 256},
        "f": {"distribution": "normal", "mu": 1, "sigma": 2},
        "g": {"parameters": {"h": {"value": 7}}},
        "i": {"distribution": "q_uniform", "q": 0.5, "min": 0, "max": 2},
    }
    params = wandb.params_of(given)
    drawn = [{name: domain.sample() for name, domain in params.items() if name != "g"} for _ in range(200)]
    assert {each["a"] for each in drawn} == {"x", "y"} and {each["b"] for each in drawn} == {1, 2, 3}
    assert all(1e-4 <= each["c"] <= 1e-1 and 0.04 < each["d"] < 1.01 and each["e"] % 8 == 0 for each in drawn)
    assert all(isinstance(each["e"], int) and each["i"] % 0.5 == 0 for each in drawn)
    assert params["g"] == {"h": 7}


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"distribution": "unifrom", "min": 0, "max": 1}, "did you mean 'uniform'"),
        ({"min": 0}, "needs value, values, or min and max"),
    ],
)
def test_a_wrong_sweep_is_refused(declared, words):
    with pytest.raises(ValueError, match=words):
        wandb.params_of({"lr": declared})


def test_a_run_before_the_space_is_refused(fake, tmp_path):
    path = tmp_path / "early.py"
    path.write_text("from tuner.integrations import wandb\nwandb.init()\n")
    with pytest.raises(RequestError, match="before the file declared its space; put tuner.script.*line 2"):
        find_space(str(path))
