"""A folder as plain Ray Tune writes it, really written by it."""

import pytest
from ray import tune

from tests.serve.conftest import asking
from tuner.record.ray_folder import guessed
from tuner.record.records import Report, TrialRecord
from tuner.record.results import load
from tuner.serve.app import create_app
from tuner.serve.reading.results_reader import ResultsReader
from tuner.space import Space
from tuner.spec.experiment import Experiment
from tuner.tuning.checks.known import past_of
from tuner.views.figures.catalogue import all_figures
from tuner.views.one_trial import one_trial
from tuner.views.report import write_report
from tuner.views.whatif import what_if


@pytest.mark.parametrize(
    "reported, metric, mode",
    [
        ("steps accuracy train_loss", "train_loss", "min"),
        ("steps episode_reward_mean", "episode_reward_mean", "max"),
        ("steps test_score", "test_score", "max"),
        ("steps lossless", "steps", "min"),
    ],
)
def test_the_metric_is_guessed_by_the_words_of_its_name(reported, metric, mode):
    report = Report(1, dict.fromkeys(reported.split(), 0.5), None, 1.0, 1)
    assert guessed([TrialRecord("00000", {}, reports=(report,))]) == (metric, mode)


def test_curves_and_tables_come_from_rays_own_files(one_ray, tmp_path):
    def train(config):
        for step in range(1, 6):
            if config["x"] > 0.9 and step == 3:
                raise ValueError("boom")
            tune.report({"mean_accuracy": 1 - config["x"] / step, "other": step})

    tune.Tuner(
        train,
        param_space={"x": tune.grid_search([0.1, 0.5, 0.95]), "deep": {"k": tune.choice([1, 2])}},
        tune_config=tune.TuneConfig(metric="mean_accuracy", mode="max", reuse_actors=True),
        run_config=tune.RunConfig(name="plain", storage_path=str(tmp_path), verbose=0),
    ).fit()
    record = load(tmp_path / "plain")
    assert (record.experiment.metric, record.experiment.mode, record.state) == ("mean_accuracy", "max", "finished")
    assert sorted(t.config["x"] for t in record.trials) == [0.1, 0.5, 0.95]
    assert {t.status for t in record.trials} == {"completed", "failed"}
    assert any("boom" in error for t in record.trials for error in t.errors)
    assert set(all_figures(record)) >= {"curves", "history", "timeline"}
    assert what_if(record, "asha", 1, 2).reproduced is None
    assert "record no decisions" in ResultsReader(tmp_path).view("plain").summary.notice
    found = asking(create_app(tmp_path), "/api/compare?")("name=plain&name=none")
    row = found["experiments"][0]
    assert (row["error"], row["trial"], row["best"]) == ("", record.best()[0].id, pytest.approx(0.98))
    assert [trace["meta"] for trace in found["figures"]["seconds"]["data"]] == ["plain"]
    assert one_trial(record, record.trials[0].id).retrain == ""
    assert "decisions not recorded" in write_report(record).read_text()
    space = Space(params={"x": tune.uniform(0, 1), "deep": {"k": tune.choice([1, 2])}}, train=train)
    known = past_of(Experiment(start_from=(str(tmp_path / "plain"),), metric="mean_accuracy", mode="max"), space)
    assert [cells[0] for cells in known["sources"][0]["first"]] == [0.1, 0.5]
