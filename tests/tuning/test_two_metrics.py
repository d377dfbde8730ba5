"""The rungs compare one metric, while the searcher learns and the answer is chosen by another that comes rarely."""

import dataclasses
import math
import random

import pytest
from by_hand import CONTINUE, STOP, Search
from following import following, heard
from journals import folding, read
from spaces import functions, tiny
from tiers import further
from workerless import CHOICES, KEPT, MANAGER, Worker, Workerless, outcome_of, resumed, run

import tuner
from tuner.record.results import ExperimentRecord, load
from tuner.spec.experiment import Experiment
from tuner.train import retrain, trial_config
from tuner.training.loop import Training
from tuner.training.sources import splits_of
from tuner.training.task import TrialSpec
from tuner.tuning.searchers import forest
from tuner.tuning.searchers.named import build_searcher
from tuner.views.whatif import reproduced, what_if

TWO = {"metric": "accuracy", "mode": "max", "prune_by": "loss"}
QUICK = {"wandb": "disabled", "max_concurrent_trials": 1}


@pytest.fixture
def by_hand(tmp_path):
    return Search(tmp_path / "journal.jsonl", max_epochs=4, scheduler="asha", **TWO)


def test_rungs_compare_the_other_metric_and_name_it(by_hand):
    assert by_hand.report("00000", 1, loss=1.0, accuracy=0.1) == CONTINUE
    assert by_hand.report("00001", 1, loss=2.0, accuracy=0.9) == STOP
    last = by_hand.decisions()[-1]
    assert (last["value"], last["cutoff"]) == (2.0, 1.0)
    assert last["reason"] == "loss 2 is worse than the cutoff 1 of the 1 trial recorded at rung 1"


def test_a_larger_value_may_be_better_at_rungs_and_a_smaller_one_in_the_answer(tmp_path):
    goals = {"metric": "size", "prune_by": "accuracy", "prune_mode": "max"}
    search = Search(tmp_path / "journal.jsonl", max_epochs=4, scheduler="asha", **goals)
    assert search.report("00000", 1, accuracy=0.9) == CONTINUE
    assert search.report("00001", 1, accuracy=0.8, size=1) == STOP


def test_a_report_without_the_searched_metric_is_no_failure_and_nan_in_it_no_divergence(by_hand):
    assert by_hand.report("00000", 1, loss=1.0) == CONTINUE
    assert by_hand.report("00000", 2, loss=0.9, accuracy=math.nan) == CONTINUE
    assert by_hand.report("00000", 3, loss=0.8, accuracy=None) == CONTINUE
    assert by_hand.report("00000", 4, loss=0.7, accuracy=0.6) == STOP
    assert by_hand.report("00001", 1, loss=math.nan, accuracy=0.5) == STOP
    assert by_hand.ends() == {
        "00000": ("completed", "trained its 4 epochs"),
        "00001": ("pruned", "loss is nan at epoch 1: the training diverged"),
    }


def test_a_report_without_the_compared_metric_is_refused(by_hand):
    assert by_hand.report("00000", 1, accuracy=0.5) == STOP
    assert str(by_hand.stopper.error).startswith(
        "--prune-by loss: trial 00000 reports no 'loss' at epoch 1; it reports accuracy; give one of these, or report"
    )


@pytest.mark.parametrize("last", [0.5, math.nan])
def test_the_searched_metric_may_come_alone_after_the_last_epoch_and_belongs_to_the_last_checkpoint(by_hand, last):
    for epoch in (1, 2, 3, 4):
        assert by_hand.report("00000", epoch, loss=1.0, checkpoint_dir_name=f"checkpoint_{epoch}") == CONTINUE
    assert by_hand.report("00000", 5, accuracy=last) == STOP
    *_, last, decision, _ = read(by_hand.path)
    assert last["checkpoint"] == "ray/00000/checkpoint_4" and decision["value"] == 1.0
    for epoch in (1, 2, 3, 4):
        assert by_hand.report("00001", epoch, loss=0.5) == CONTINUE
    assert by_hand.report("00001", 5, loss=0.5) == STOP  # it has had its last chance
    assert {status for status, _ in by_hand.ends().values()} == {"completed"}


@pytest.mark.parametrize("most", [5, 100])
def test_a_report_of_the_searched_metric_alone_adds_no_epoch_to_the_length_of_the_trials(tmp_path, most):
    search = Search(tmp_path / "journal.jsonl", max_epochs=most, grace_period=1, scheduler="asha", **TWO)
    for trial_id, losses in {"00000": [1.0, 1.0, 1.0, 1.0], "00001": [0.5, 0.5, 0.5, 2.0]}.items():
        for epoch, loss in enumerate(losses, 1):
            assert search.report(trial_id, epoch, loss=loss) == CONTINUE  # at epoch 4, all epochs have been trained
        assert search.report(trial_id, 5, accuracy=0.5) == CONTINUE
        search.scheduler.on_trial_complete(None, trial := search.trials[trial_id], trial.last_result)
    (learned,) = [event for event in read(search.path) if event["event"] == "length_learned"]
    assert (learned["epochs"], learned["rungs"]) == (4, [1, 2])
    record = ExperimentRecord(search.experiment, {}, **folding(read(search.path)).fields())
    assert what_if(record, "asha", 1, record.rules.reduction_factor).stopped.most == 0


def test_a_trial_that_a_raised_max_epochs_continues_reports_the_searched_metric_anew(tmp_path):
    choices = {"scheduler": "fifo", "name": "e", "results": str(tmp_path), **TWO}
    first = Search(tmp_path / "first", max_epochs=4, **choices)
    first.journal.write("experiment_started", max_epochs=4)
    first.journal.write("trial_suggested", "00000", config={"lr": 0.1})
    for epoch in (1, 2, 3, 4):
        assert first.report("00000", epoch, loss=1.0, checkpoint_dir_name=f"checkpoint_{epoch}") == CONTINUE
    assert first.report("00000", 5, accuracy=0.5) == STOP
    (tmp_path / "e" / "ray" / "00000" / "checkpoint_4").mkdir(parents=True)
    more = Search(tmp_path / "more", read(first.path), max_epochs=5, **choices)
    assert more.trials["00000"].status == "PENDING"
    assert more.report("00000", 6, loss=0.5) == CONTINUE  # its fifth epoch
    assert more.report("00000", 7, accuracy=0.6) == STOP


@pytest.mark.parametrize(
    ("stop", "metrics", "reason"),
    [
        ("loss=0.5", {"loss": 0.4}, "loss reached 0.4 (--stop loss=0.5)"),
        ("accuracy=0.9", {"loss": 0.6, "accuracy": 0.95}, "accuracy reached 0.95 (--stop accuracy=0.9)"),
    ],
)
def test_each_of_both_metrics_is_stopped_in_its_own_direction(tmp_path, stop, metrics, reason):
    search = Search(tmp_path / "journal.jsonl", max_epochs=4, stop=(stop,), **TWO)
    assert search.report("00000", 1, loss=1.0, accuracy=0.1) == search.report("00000", 2, loss=0.9) == CONTINUE
    assert search.report("00000", 3, **metrics) == STOP and search.ends() == {"00000": ("completed", reason)}


class Rare(Workerless):
    """Workers that report the searched metric after every second epoch only."""

    class worker(Worker):
        def train(self):
            report = super().train()
            return report | ({"accuracy": 1 / (1 + self.report["loss"])} if self.epoch % 2 == 0 else {})


class Last(Workerless):
    """Workers that report the searched metric alone, after all their epochs; one in four has NaN."""

    class worker(Worker):
        def train(self):
            report = super().train()
            if self.epoch <= CHOICES["max_epochs"]:
                return report
            del report["loss"], report["checkpoint_dir_name"]
            value = self.way / 2**32 if self.way % 4 else math.nan
            return report | {"accuracy": value, "should_checkpoint": False}


PAIRS = [("forest", "asha", Rare), ("optuna", "asha-promotion", Last)]
MORE = [("hyperopt", "hyperband", Rare), ("bohb", "bohb", Rare), ("refine", "median", Last), ("random", "pbt", Rare)]


@pytest.mark.parametrize(("searcher", "scheduler", "workers"), [*PAIRS, *further(MORE, len(MORE))])
def test_a_search_that_is_cut_again_and_again_ends_as_if_it_had_not(
    one_ray, tmp_path, monkeypatch, searcher, scheduler, workers
):
    monkeypatch.setattr(MANAGER, workers)
    monkeypatch.setattr(*KEPT)
    monkeypatch.setattr(forest, "NUM_RANDOM", 3)  # of nine settings
    choices = {"searcher": searcher, "scheduler": scheduler, **TWO}
    run(tmp_path / "whole", **CHOICES, **choices)
    folder, stream, at = tmp_path / "whole", random.Random(f"{searcher} {scheduler}"), 0
    expected = outcome_of(folder)
    record = load(folder)
    assert record.best() and "accuracy" not in record.trials[0].reports[0].metrics
    assert reproduced(record) in (None, len(record.stats.stopped))
    while (at := at + stream.randint(5, 25)) < len(read(folder / "journal.jsonl")):
        folder = resumed(folder, at, **choices)
        assert outcome_of(folder) == expected, f"cut after {at} events"


def searcher_of(name, **choices):
    return build_searcher(Experiment(searcher=name, scheduler="asha", num_samples=40, **TWO, **choices), tiny.space)


def reported(epoch, loss, **metrics):
    return {"training_iteration": epoch, "loss": loss, **metrics}


def test_the_forest_ranks_by_the_searched_metric_and_behind_it_by_the_compared_one():
    searcher = searcher_of("forest")
    for number in range(7):
        searcher.suggest(f"{number:05d}")
    searcher.complete("00000", error=True)
    searcher.complete("00001", reported(1, 0.3))  # pruned before the metric came
    searcher.complete("00002", reported(2, 0.9))
    searcher.report("00003", reported(1, 0.1))
    searcher.report("00003", reported(2, 0.1, accuracy=math.nan))
    searcher.complete("00003")  # stopped while it was paused
    searcher.report("00004", reported(4, 2.0, accuracy=0.7))
    searcher.report("00004", reported(5, 2.0))
    searcher.complete("00005", reported(4, 3.0, accuracy=0.8))
    searcher.report("00006", reported(4, 1.5))
    searcher.report("00006", nan := {"training_iteration": 5, "accuracy": math.nan})
    searcher.complete("00006", nan)
    ranked = sorted(searcher._values, key=searcher._values.__getitem__)
    assert ranked == ["00005", "00004", "00006", "00003", "00002", "00001", "00000"]


@pytest.mark.parametrize("name", ["random", "refine", "forest", "hyperopt", "optuna"])
def test_every_searcher_goes_on_after_trials_without_the_searched_metric(name):
    searcher = searcher_of(name)
    told = []
    if hasattr(searcher, "library"):
        complete = searcher.library.on_trial_complete
        searcher.library.on_trial_complete = lambda trial, result: (told.append(result), complete(trial, result))
    for number in range(25):
        assert searcher.suggest(trial := f"{number:05d}")
        searcher.report(trial, reported(1, number))
        searcher.complete(trial, reported(2, number, **({"accuracy": 0.5} if number % 3 == 0 else {})))
    assert [result and result["accuracy"] for result in told] in ([], [None if n % 3 else 0.5 for n in range(25)])


def test_the_tracker_follows_both_and_says_once_that_a_completed_trial_has_no_answer():
    tracker, texts = following(Experiment(**TWO)), []
    tracker.on_notice = texts.append

    def ends(trial, status="completed", **metrics):
        heard(tracker, {"event": "report", "trial": trial, "epoch": 1, "metrics": {"loss": 0.5, "acc": 1, **metrics}})
        heard(tracker, {"event": "trial_ended", "trial": trial, "status": status, "reason": ""})

    ends("00000", "pruned")
    assert tracker.state.trials["00000"].shown_status == "pruned" and tracker.state.best() is None and not texts
    ends("00001")
    ends("00002")
    assert texts == ["trial 00001 completed without a finite 'accuracy', which an answer needs; did you mean 'acc'?"]
    assert not tracker.hopeless()
    ends("00003")
    assert tracker.hopeless().startswith("3 trials completed without a finite 'accuracy'")
    ends("00004", accuracy=0.25)
    assert tracker.state.best() == (0.25, "00004") and not tracker.hopeless()


def test_a_last_report_of_nan_alone_is_no_divergence_and_is_named():
    tracker, texts = following(Experiment(**TWO)), []
    tracker.on_notice = texts.append
    for epoch, metrics in enumerate([{"loss": 0.5}, {"accuracy": math.nan}], 1):
        heard(tracker, {"event": "report", "trial": "00000", "epoch": epoch, "metrics": metrics})
    heard(tracker, {"event": "trial_ended", "trial": "00000", "status": "completed", "reason": ""})
    assert tracker.state.trials["00000"].value == 0.5
    assert texts == [
        "trial 00000 completed without a finite 'accuracy', which an answer needs; report it as a finite number, at "
        "the latest in a trial's last report"
    ]


def test_a_task_computes_its_final_metrics_in_the_last_report_and_on_the_test_part():
    task, spec = tiny.finals.task, TrialSpec({"width": 4, "lr": 0.01, "batch_size": 16}, seed=0, max_epochs=2)
    splits = splits_of(task, "", 0)
    training = Training(task, splits, spec)
    first, at_first, last = training.run_epoch(), training.final_metrics(), training.run_epoch()
    assert "accuracy" not in first and at_first.keys() == {"accuracy"} and list(last)[:2] == ["loss", "accuracy"]
    assert training.final_metrics() == {"accuracy": last["accuracy"]}
    assert training.evaluate(splits.test).keys() == {"loss", "accuracy"}
    always = Training(tiny.space.task, splits, spec)  # with the metric in every report
    assert [always.run_epoch()["loss"] for _ in range(2)] == [first["loss"], last["loss"]]


def test_a_task_reports_numbers_of_the_model_alone():
    own = {
        "weights": lambda model: sum(each.numel() for each in model.parameters()),
        "mode": lambda model: model.training,
    }
    task = dataclasses.replace(tiny.space.task, model_metrics=own)
    splits, spec = splits_of(task, "", 0), TrialSpec({"width": 4, "lr": 0.01, "batch_size": 16}, seed=0, max_epochs=2)
    training = Training(task, splits, spec)
    weights, report = sum(each.numel() for each in training.model.parameters()), training.run_epoch()
    assert (report["weights"], report["mode"]) == (weights, 0) and list(report)[0] == "loss"
    assert training.evaluate(splits.test)["weights"] == weights and training.final_metrics() == {}
    with pytest.raises(ValueError, match="metrics and model_metrics both have 'accuracy'"):
        dataclasses.replace(task, model_metrics={"accuracy": own["weights"]})


def test_a_task_is_searched_by_a_final_metric(here):
    result = tuner.search(tiny.finals, num_samples=6, max_epochs=4, scheduler="asha", **QUICK)
    trials = result.trials.set_index("trial")
    assert result.best.metrics["accuracy"] == trials["best_accuracy"].max() and result.best.epoch == 4
    assert result.best.test.keys() == {"loss", "accuracy"} and tuner.load_best(result.folder).model
    assert set(trials[trials["best_accuracy"].notna()]["status"]) == {"completed"}
    assert "pruned" in set(trials["status"]) and trials["last_loss"].notna().all()
    report = (result.folder / "report.html").read_text()
    assert "How well loss predicts accuracy" in report and "accuracy 0." in report
    assert [row.at_rung.trials for row in result.prediction] == [0, 0]
    assert result.prediction[0].at_end.trials == (trials["status"] == "completed").sum()


def test_a_pruned_trial_is_trained_again_and_tested_after_its_last_epoch(here, capsys):
    result = tuner.search(tiny.finals, num_samples=2, max_epochs=2, scheduler="asha", grace_period=1, **QUICK)
    (pruned,) = result.trials["trial"][result.trials["status"] == "pruned"]
    retrain(trial_config(load(result.folder), pruned))
    assert "test, after epoch 1, the setting's last in the search: loss " in capsys.readouterr().out


def test_a_trial_that_reaches_a_value_of_stop_computes_the_final_metrics_too(here):
    result = tuner.search(tiny.finals, num_samples=1, max_epochs=4, stop={"loss": 100}, scheduler="fifo", **QUICK)
    assert result.best.epoch == 1 and result.best.metrics["accuracy"] > 0


@pytest.mark.slow  # 30 s
@pytest.mark.parametrize(("most", "length"), [(4, 0), (100, 4)])
def test_a_function_may_return_the_searched_metric_after_its_last_epoch(here, most, length):
    result = tuner.search(functions.accurate, scheduler="asha", max_epochs=most, grace_period=1, **QUICK)
    assert result.exit_code == 0 and result.best.epoch == 5
    assert result.best.metrics["accuracy"] == 1 - result.best.config["x"]
    done = result.trials[result.trials["status"] == "completed"]
    assert result.best.config["x"] == done["x"].min() and 0 < len(done) < 6
    record = load(result.folder)
    replayed = what_if(record, "asha", record.rules.grace_period, record.rules.reduction_factor)
    assert replayed.reproduced == replayed.stopped.least == replayed.stopped_recorded and record.length == length


@pytest.mark.slow  # 10 s
def test_a_search_whose_trials_never_report_the_searched_metric_gives_up(here, capsys):
    result = tuner.search(functions.silent, scheduler="fifo", **QUICK)
    out = capsys.readouterr().out
    assert result.exit_code == 1 and result.state == "failed" and len(result.trials) < 9
    assert "NOTE: trial 00000 completed without a finite 'acc', which an answer needs; report it as a finite" in out
    assert "the search was stopped: 3 trials completed without a finite 'acc'" in out and "failed alike" not in out
