"""How far a search is: its pace, the time left, and what is spent, left and planned of its budgets."""

import time
from collections import Counter
from dataclasses import replace

import pytest
from following import following, heard
from journals import folding
from test_figures import record, trial

from tuner.engine.controller.stopper import SearchStopper
from tuner.record.results import ExperimentRecord
from tuner.record.texts import duration
from tuner.spec.experiment import Experiment
from tuner.tuning.output.progress import progress_line
from tuner.views.progress import Progress, budget_of, progress_of
from tuner.views.verdict import verdict_of


def running(*trials, took_s=100.0, **options):
    return replace(record(*trials, **options), state="running", took_s=took_s)


def ended(num, **more):
    status = ("completed", "pruned", "failed")
    return [replace(trial(n, [1.0] * 2, status[n % 3], x=n), cpu_hours=0.5, gpu_hours=0.25, **more) for n in range(num)]


def test_the_search_ends_with_its_last_trial_or_its_first_budget():
    trials = [*ended(4), trial(9, [1.0], "running"), trial(10, [], "suggested")]
    # 9 reports in 100 s; the ended trials trained 2 epochs each, and the running one 1.
    assert progress_of(running(*trials, num_samples=20)) == Progress(4, 20, 144.0, pytest.approx(31 * 100 / 9))
    assert progress_of(running(*trials, num_samples=5)) == Progress(4, 6, 144.0, pytest.approx(3 * 100 / 9))  # extended
    assert progress_of(running(*trials, num_samples=0, time_budget="180s")) == Progress(4, 0, 144.0, 80.0)
    assert progress_of(running(*trials, num_samples=20, epoch_budget=12)).left_s == pytest.approx(3 / 9 * 100)
    assert progress_of(running(*trials, num_samples=20, cpu_hours=3, gpu_hours=9)).left_s == pytest.approx(50.0)
    assert progress_of(running(*trials, num_samples=20, cpu_hours=1.5)).left_s == 0.0  # it is overdrawn
    over = replace(running(*trials, num_samples=20), state="interrupted")
    for unknown in (running(*trials[4:], num_samples=20), over):
        assert progress_of(unknown)[2:] == (None, None)
    assert progress_of(record(num_samples=20)) == Progress(0, 20) and progress_of(running(took_s=0.0)).ended == 0


@pytest.mark.parametrize("scheduler", ["asha", "asha-promotion"])
def test_terminal_and_page_estimate_the_same_time_left(scheduler):
    """In the second session of a search: 7 reports in 1,020 s."""
    experiment = Experiment(num_samples=9, scheduler=scheduler, name="e", results="/nowhere")
    first = [at(0, "experiment_started"), *begun("00000", 100), reported("00000", 1, 900), ended_at("00000", 950)]
    now = [at(1000, "experiment_resumed"), *begun("00001", 1010), *begun("00002", 1010), *begun("00003", 1010)]
    now += [reported(trial, epoch, 1010 + 10 * epoch) for trial, epochs in (("00001", 3), ("00002", 1)) for epoch in
            range(1, epochs + 1)]  # fmt: skip
    now += [ended_at("00001", 1040), reported("00003", 1, 1045)]
    now += [at(1050, "decision", trial="00003", epoch=1, rung=1, bracket=0, value=1.0, cutoff=None, recorded=0,
               action="pause", reason="waits"), reported("00002", 2, 1070)]  # fmt: skip
    whole = ExperimentRecord(experiment, {}, **folding([*first, *now]).fields())
    tracker = following(experiment, first)
    heard(tracker, *now)
    tracker.began = time.monotonic() - 70
    counts = Counter(trial.shown_status for trial in whole.trials)
    line = progress_line(counts, tracker, experiment, 9, SearchStopper(), before_s=950.0)
    assert progress_of(whole).left_s > 0 and f"about {duration(progress_of(whole).left_s)} left" in line


def at(time, event, **fields):
    return {"time": float(time), "event": event, **fields}


def begun(trial, time):
    known = at(time, "trial_suggested", trial=trial, config={})
    return [known, at(time, "trial_started", trial=trial, config={}, resources={"CPU": 1}, node="n")]


def reported(trial, epoch, time):
    return at(time, "report", trial=trial, epoch=epoch, metrics={"loss": 1.0})


def ended_at(trial, time):
    return at(time, "trial_ended", trial=trial, status="completed", reason="")


def test_each_budget_says_what_is_spent_and_left_and_the_rest_what_it_is_for():
    all_of = {"time_budget": "180s", "gpu_hours": 2.0, "cpu_hours": 4.5, "epoch_budget": 2000}
    trials, started = ended(3), trial(9, [1.0], "running")
    again = replace(trials[0], repeated=trials[0].reports)  # epochs that were trained again are spent, too
    spent = (
        "1 min 40 s of 3 min 0 s are spent, 1 min 20 s are left; 0.75 of 2 GPU-hours are spent, 1.25 are left; "
        "1.5 of 4.5 CPU-hours are spent, 3 are left; 9 of 2,000 epochs are spent, 1,991 are left."
    )
    one = running(again, *trials[1:], started, num_samples=9, **all_of)
    assert budget_of(one) == verdict_of(one).about("budget") == f"{spent} The rest trains new settings."
    assert budget_of(replace(one, state="finished")) == spent
    assert budget_of(replace(one, refused=True)) == budget_of(running(*trials)) == ""


@pytest.mark.parametrize(
    ("options", "plan"),
    [
        ({"num_samples": 0, "scheduler": "asha-promotion"},
         "new settings, then the best paused trials to their last epoch"),
        ({"num_samples": 3, "scheduler": "asha-promotion", "confirm": 1},
         "the best paused trials to their last epoch, then the best settings again with other seeds"),
        ({"num_samples": 0, "confirm": 1}, "new settings, then the best settings again with other seeds"),
        ({"num_samples": 3}, ""),
    ],
)  # fmt: skip
def test_the_rest_of_a_budget_is_for_what_is_still_to_come(options, plan):
    one = running(*ended(3), cpu_hours=9, **options)
    assert budget_of(one).partition("left.")[2] == (f" The rest trains {plan}." if plan else "")
    confirming = replace(one, trials=(*one.trials, replace(trial(9, [1.0], "running"), confirms="00000")))
    again = " The rest trains the best settings again with other seeds." if "confirm" in options else ""
    assert budget_of(confirming).partition("left.")[2] == again
    changed = budget_of(replace(one, changed="no trial saves a checkpoint"))  # asha pauses none
    assert "paused" not in changed
