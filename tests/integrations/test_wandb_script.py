"""W&B's scripts in a trial: `wandb.config` has its parameters, `wandb.log` of the metric is a report."""

from pathlib import Path

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


@pytest.fixture
def reports(monkeypatch):
    sent = []
    monkeypatch.setattr(tune, "report", sent.append)
    return sent


def test_the_config_is_the_trials_and_the_runs_folder_lives_as_long(reports):
    with in_trial({"lr": 0.5}, "loss") as trial:
        run = wandb.init(project="p", config={"lr": 0.1, "width": 3})
        wandb.config.update({"lr": 9, "depth": 2})
        assert dict(wandb.config) == {"lr": 0.5, "width": 3, "depth": 2}
        assert run.settings.mode == "disabled" and trial.read
        model = Path(wandb.run.dir, "model.pt")
        model.touch()
        wandb.log_model("model.pt")
    assert not model.parent.parent.exists()


def test_a_log_with_the_metric_is_a_report(reports):
    with in_trial({"lr": 0.5}, "val/loss"):
        run = wandb.init()
        wandb.log({"batch": 1.0})
        wandb.log({"batch": 2.0, "picture": object(), "note": "text"})
        wandb.log({"val/loss": torch.tensor([0.25]), "map": np.ones((2, 2)), "size": np.float32(2)}, step=7)
        run.log({"val/loss": 0.2}, commit=False)
        run.log({"accuracy": True})
        wandb.log()
    assert reports == [{"batch": 2.0, "val/loss": 0.25, "size": 2.0}, {"val/loss": 0.2, "accuracy": True}]


def test_the_numbers_of_a_step_are_one_report(reports, capsys):
    """The first step is reported when the second begins, the others once they have what came after the metric, too."""
    with in_trial({"lr": 0.5}, "loss") as trial:
        wandb.init()
        for epoch in (1, 2, 3, 4):
            wandb.log({"batch": epoch}, step=10 * epoch - 5)
            wandb.log({"loss": 1 / epoch}, step=10 * epoch)
            assert len(reports) == epoch - 1
            if epoch != 3:
                wandb.log({"acc": epoch / 10}, step=10 * epoch)
                assert len(reports) == (epoch if epoch > 1 else 0)
        wandb.log({"late": 1}, step=40)
        wandb.log({"late": 1}, step=40)
        wandb.log({"loss": 0.2}, step=50)
        trial.at_end()
    whole = [{"batch": e, "loss": 1 / e} | ({"acc": e / 10} if e != 3 else {}) for e in (1, 2, 3, 4)]
    assert reports == [*whole, {"loss": 0.2}]
    assert capsys.readouterr().out.count("late came after the report of step 40; later steps wait for it") == 1


def test_the_searched_metric_that_comes_after_the_report_of_the_last_step_is_not_lost(reports):
    with in_trial({"lr": 0.5}, "accuracy", "max", "loss") as trial:
        wandb.init()
        for epoch in range(3):
            wandb.log({"loss": epoch}, step=epoch)
        wandb.log({"accuracy": 0.9}, step=2)
        trial.at_end()
    assert reports == [{"loss": 0}, {"loss": 1}, {"loss": 2}, {"accuracy": 0.9}]


def test_the_searched_metric_that_comes_after_the_report_of_its_step_is_in_no_other_step(reports, capsys):
    with in_trial({"lr": 0.5}, "accuracy", "max", "loss") as trial:
        wandb.init()
        for epoch in range(4):
            wandb.log({"loss": epoch}, step=epoch)
            if epoch % 2:
                wandb.log({"accuracy": epoch / 10}, step=epoch)
        trial.at_end()
    assert reports == [{"loss": 0}, {"loss": 1}, {"loss": 2}, {"loss": 3, "accuracy": 0.3}]
    assert capsys.readouterr().out.count("accuracy came after the report of its step") == 1


def test_the_numbers_of_a_nested_dictionary_have_the_names_that_wandb_gives_them(reports):
    with in_trial({"lr": 0.5}, "val.loss"):
        wandb.init()
        wandb.log({"val": {"loss": 0.5, "parts": {"a": 1, "note": "x"}}})
    assert reports == [{"val.loss": 0.5, "val.parts.a": 1}]


def test_a_step_that_logs_the_metric_again_is_reported_again_and_commit_sends_at_once_or_later(reports):
    with in_trial({"lr": 0.5}, "loss") as trial:
        wandb.init()
        wandb.log({"loss": 0.9}, step=0)
        wandb.log({"loss": 0.8}, step=0)
        wandb.log({"loss": 0.7}, step=1, commit=False)
        wandb.log({"acc": 0.1}, 1, True)
        wandb.log({"loss": 0.6}, step=2, commit=True)
        wandb.log({"loss": 0.5}, step=3)
        wandb.init()  # the next run of the same script
        wandb.log({"loss": 0.4}, commit=False)
        trial.at_end()
    assert [tuple(each.values()) for each in reports] == [(0.9,), (0.8,), (0.7, 0.1), (0.6,), (0.5,), (0.4,)]


@pytest.mark.parametrize(("logged", "reported"), [({}, 0.1), ({"error": 0.4}, 0.4)])
def test_a_metric_of_the_summary_is_the_report_of_the_end(reports, logged, reported):
    with in_trial({"lr": 0.5}, "error") as trial:
        wandb.init()
        wandb.log(logged)
        wandb.run.summary["error"] = 0.1
        if trial.at_end:
            trial.at_end()
    assert reports == [{"error": reported}]


def test_a_metric_that_is_never_logged_is_named_beside_what_is(reports):
    with in_trial({"lr": 0.5}, "val_los") as trial:
        wandb.init()
        wandb.log({"val_loss": 1.0, "epoch": 1})
        with pytest.raises(ValueError, match="'val_los'; did you mean 'val_loss'.*logged val_loss, epoch; give"):
            trial.at_end()
        assert reports == []
        wandb.log({"val_los": 1.0})
        wandb.init()  # a further run of the script need not log it
        trial.at_end()
        assert reports == [{"val_loss": 1.0, "epoch": 1, "val_los": 1.0}]


def test_a_sweep_is_the_space_of_its_file_and_is_searched(tmp_path, search_here):
    """Under `if __name__ == "__main__":` too, where W&B's own examples have it; `count` is the number of settings."""
    path = tmp_path / "sweep.py"
    path.write_text(SWEEP)
    space = find_space(str(path)).space
    assert (space.metric, space.mode, space.num_samples) == ("loss", "min", 3)
    assert (space.searcher, space.scheduler) == ("random", "fifo")
    assert space.searched.keys() == {"learning_rate"} and space.constants == {"epochs": 2}
    done = search_here(str(path), "--num-samples", "1")
    assert done.code == 0, done.err
    (trial,) = done.record.trials
    assert [report.metrics["loss"] for report in trial.reports] == [trial.config["learning_rate"] / n for n in (1, 2)]
    assert {report.metrics["batch loss"] for report in trial.reports} == {5.0}


def test_a_run_before_the_space_is_refused(tmp_path):
    path = tmp_path / "early.py"
    path.write_text("from tuner.integrations import wandb\nwandb.init()\n")
    with pytest.raises(RequestError, match="before the file declared its space; put tuner.script.*line 2"):
        find_space(str(path))


def test_of_two_metrics_the_compared_one_is_the_report_and_the_other_may_be_the_last(reports):
    with in_trial({"lr": 0.5}, "accuracy", "max", "loss") as trial:
        wandb.init()
        wandb.log({"accuracy": 0.1})
        wandb.log({"loss": 2.0})
        wandb.log({"loss": 1.0})
        wandb.log({"accuracy": 0.9})
        trial.at_end()
    assert reports == [{"accuracy": 0.1, "loss": 2.0}, {"loss": 1.0}, {"accuracy": 0.9}]


@pytest.mark.parametrize(("logged", "last"), [({}, [{"accuracy": 0.7}]), ({"accuracy": 0.1}, [])])
def test_a_searched_metric_that_only_the_summary_has_is_the_last_report(reports, logged, last):
    with in_trial({"lr": 0.5}, "accuracy", "max", "loss") as trial:
        wandb.init()
        wandb.log({"loss": 2.0, **logged})
        wandb.run.summary["accuracy"] = 0.7
        trial.at_end()
    assert reports[1:] == last


def test_a_script_that_ends_with_sys_exit_reports_the_searched_metric_that_it_logged_last(tmp_path, search_here):
    text = """
import sys, tuner
from ray import tune
from tuner.integrations import wandb
tuner.script({"x": tune.uniform(0, 1)}, metric="accuracy", mode="max", prune_by="loss")
wandb.init()
wandb.log({"loss": 1.0})
wandb.log({"accuracy": wandb.config.x})
sys.exit()
"""
    (tmp_path / "main.py").write_text(text)
    done = search_here(str(tmp_path / "main.py"), "--num-samples", "1")
    assert done.code == 0, done.err
    assert done.record.best()[1].metrics["accuracy"] == done.record.trials[0].config["x"]


def test_of_several_metrics_all_are_in_each_report(reports):
    with in_trial({"lr": 0.5}, "accuracy", "max", others=["size"]):
        wandb.init()
        for epoch in (1, 2):
            wandb.log({"accuracy": 0.1 * epoch})
            wandb.log({"size": epoch})
    assert reports == [{"accuracy": 0.1, "size": 1}, {"accuracy": 0.2, "size": 2}]
