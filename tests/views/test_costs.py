"""What the trials of each value of a parameter cost."""

import csv
import io
from dataclasses import replace

from journals import folding, ruled

from tuner.core.events import Report
from tuner.record.records import TrialRecord
from tuner.record.results import ExperimentRecord
from tuner.spec.experiment import Experiment
from tuner.tuning.answer.writing import trials_csv
from tuner.views.costs import cost_rows
from tuner.views.report import page
from tuner.views.verdict import ending_lines


def trial(number, config, epochs, status="completed"):
    reports = tuple(Report(e, {"loss": 1 / (e + number)}, None, e, 100 * number + e) for e in range(1, epochs + 1))
    stop = ruled(epochs, epochs, 0, 1.0, 0.5, 9, "stop", "why")
    decisions = {"pruned": (stop,), "paused": (stop._replace(action="pause"),)}.get(status, ())
    cost = {"seconds": 10.0 * epochs, "cpu_hours": 0.2 * epochs, "gpu_hours": 0.1 * epochs, "epoch_seconds": 10.0}
    return TrialRecord(f"{number:05}", config, status, "r", reports, decisions, **cost)


def record(*trials, **options):
    experiment = Experiment(space="x", name="e", max_epochs=8, results="/nowhere", scheduler="asha-promotion")
    return ExperimentRecord(experiment, {"data": {}}, trials, "finished", **options)


def test_each_value_has_the_cost_of_its_trials_and_what_pruning_saved_there():
    trials = [trial(0, {"act": "relu", "lr": 0.1}, 8), trial(1, {"act": "tanh", "lr": 0.1}, 2, "pruned")]
    rows = cost_rows(record(*trials, trial(2, {"act": "tanh", "lr": 0.1}, 6, "paused")))
    assert {row.parameter for row in rows} == {"act"}  # lr has one value
    relu, tanh = rows
    assert (relu.value, relu.trials, relu.epochs, relu.seconds, relu.saved, relu.share) == (
        "relu",
        1,
        8,
        80,
        0,
        50.0,
    )
    assert (tanh.value, tanh.trials, tanh.epochs, tanh.epoch_s, tanh.saved) == ("tanh", 2, 8, 10, 8)
    assert round(tanh.cpu_hours, 6) == 1.6 and round(tanh.gpu_hours, 6) == 0.8


def test_only_trials_that_the_rule_paused_count_as_pruned():
    judged = trial(0, {}, 2, "paused")
    promoted = replace(judged, decisions=(judged.decisions[0]._replace(action="continue"),))
    waits_for_budget = replace(judged, decisions=(judged.decisions[0]._replace(budget=True),))
    assert record(judged, trial(1, {}, 3, "pruned")).epochs_saved() == {"00000": 6, "00001": 5}
    for other in (promoted, waits_for_budget):
        assert record(other, trial(1, {}, 3, "pruned"), out_of_time=True).epochs_saved() == {"00001": 5}


def test_a_report_of_the_searched_metric_alone_is_no_epoch_that_pruning_did_not_save():
    cut = trial(0, {}, 2, "pruned")
    one = record(replace(cut, reports=(*cut.reports, Report(3, {"accuracy": 0.5}, None, 3, 3))))
    two = replace(one.experiment, metric="accuracy", mode="max", prune_by="loss")
    assert replace(one, experiment=two).epochs_saved() == {"00000": 6}


def test_many_numbers_are_put_into_quarters_and_nested_parameters_have_their_own_trials():
    trials = [trial(n, {"lr": 0.5**n, **({"opt": {"beta": n}} if n < 2 else {})}, 1) for n in range(20)]
    rows = cost_rows(record(*trials))
    lr = [row for row in rows if row.parameter == "lr"]
    assert [row.trials for row in lr] == [5, 5, 5, 5] and lr[-1].value == "0.0625 to 1"
    assert [(row.value, row.trials) for row in rows if row.parameter == "opt/beta"] == [("0", 1), ("1", 1)]


def test_trials_csv_and_the_report_have_the_costs():
    one = record(trial(0, {"lr": 0.1}, 8), trial(1, {"lr": 0.2}, 3, "paused"), out_of_time=True)
    first, second = csv.DictReader(io.StringIO(trials_csv(one)))
    assert (first["cpu_hours"], first["gpu_hours"], first["epochs_saved_estimate"]) == ("1.6", "0.8", "0")
    assert second["epochs_saved_estimate"] == "5"
    shown = page(one)
    assert "Cost of each value of a parameter" in shown and "CPU-hours" in shown
    assert any("About 5 of 16 epochs" in line and "stopped or paused" in line for line in ending_lines(one))


def test_a_trial_pays_for_the_resources_of_each_of_its_sessions():
    def started(time, **resources):
        return {"event": "trial_started", "trial": "0", "time": time, "config": {}, "resources": resources, "node": "n"}

    report = {"event": "report", "trial": "0", "epoch": 1, "metrics": {}, "time": 3600}
    end = {"event": "trial_ended", "trial": "0", "status": "completed", "reason": "", "time": 9000}
    (trial,) = folding([started(0, CPU=2, GPU=0.5), report, started(5400, CPU=1), end]).records()
    assert (trial.cpu_hours, trial.gpu_hours) == (3.0, 0.5)
