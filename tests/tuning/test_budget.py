"""Budgets: what a search has spent, when it takes no more settings, which trials it finishes, and its resume."""

import pytest
from following import heard
from journals import folding, read, typed
from killing import cut
from ray.tune.result import RESULT_DUPLICATE
from workerless import KEPT, MANAGER, Worker, Workerless, learn, outcome_of, run

from tuner.core.events import RETURNED
from tuner.core.state import State
from tuner.record import clock
from tuner.record.results import load
from tuner.spec.experiment import Experiment
from tuner.spec.resources import Resources
from tuner.tuning.budget import OVERRUN, Budget
from tuner.views.whatif import what_if

MOST, LENGTH = 60, 8  # the budget, and the epochs of a trial; its rungs are after 1, 2 and 4 epochs
CHOICES = {"scheduler": "asha-promotion", "max_epochs": LENGTH, "num_samples": 0, "epoch_budget": MOST}


def falling(trial, setting, epoch, way):
    """A loss that falls with each epoch, so that the best trial is one that has trained far."""
    way, loss = learn(trial, setting, epoch, way)
    return way, loss % 1 + 1 / epoch


@pytest.fixture
def search(one_ray, tmp_path, monkeypatch):
    monkeypatch.setattr(MANAGER, Workerless)
    monkeypatch.setattr("workerless.learn", falling)
    monkeypatch.setattr(*KEPT)

    def ran(name="whole", **choices):
        run(tmp_path / name, **CHOICES | choices)
        return tmp_path / name, read(tmp_path / name / "journal.jsonl")

    return ran


def best_of(events):
    """The best trial, and the last epoch of each trial."""
    reports = [event for event in events if event["event"] == "report"]
    best = min(reports, key=lambda report: report["metrics"]["loss"])["trial"]
    return best, {report["trial"]: report["epoch"] for report in reports}


@pytest.mark.parametrize("scheduler", ["asha-promotion", "asha", "hyperband", "bohb", "median", "fifo"])
@pytest.mark.parametrize("concurrent", [1, 2])
def test_a_search_ends_with_its_budget_and_its_best_trial_is_whole(search, monkeypatch, scheduler, concurrent):
    monkeypatch.setattr(Workerless, "num_cpus", concurrent)
    searcher = "bohb" if scheduler == "bohb" else "random"
    _, events = search(scheduler=scheduler, searcher=searcher, concurrent=concurrent)
    best, epochs = best_of(events)
    assert epochs[best] == LENGTH
    assert MOST - LENGTH < sum(event["event"] == "report" for event in events) <= MOST
    last = events[-1]
    assert (last["state"], last["out_of_time"]) == ("finished", True)
    assert "the budget of 60 epochs" in last["reason"]
    ended = {event["trial"]: event["status"] for event in events if event["event"] == "trial_ended"}
    assert "interrupted" not in ended.values()


@pytest.mark.parametrize("scheduler", ["asha-promotion", "asha", "hyperband", "bohb", "median", "fifo"])
@pytest.mark.parametrize("budget", [{"time_budget": f"{MOST}s"}, {"cpu_hours": MOST / 3600}], ids="-".join)
def test_a_budget_of_time_or_hours_ends_with_the_best_trial_whole(search, monkeypatch, scheduler, budget):
    now, train = [1000.0], Worker.train

    def takes_a_second(worker):
        now[0] += 1
        return train(worker)

    monkeypatch.setattr(Worker, "train", takes_a_second)
    monkeypatch.setattr(clock, "now", lambda: now[0])
    searcher = "bohb" if scheduler == "bohb" else "random"
    _, events = search(scheduler=scheduler, searcher=searcher, epoch_budget=0, **budget)
    best, epochs = best_of(events)
    assert epochs[best] == LENGTH
    assert MOST - LENGTH < events[-1]["time"] - events[0]["time"] <= OVERRUN * MOST


def test_a_budget_continues_where_it_was_cut_with_the_same_decisions(search, tmp_path):
    folder, events = search()
    expected = outcome_of(folder)
    # One was finished out of turn, another waited.
    assert {e["action"] for e in events if e.get("budget")} == {"continue", "pause"}
    for at in range(3, len(events), 7):
        target = tmp_path / f"cut-{at}"
        cut(folder, target, at)
        run(target, **CHOICES)
        assert outcome_of(target) == expected, f"cut after {at} events"


def test_a_replay_of_its_own_rules_trains_each_trial_as_long_as_the_search(search):
    folder, events = search()
    outcome = what_if(load(folder), "asha-promotion", 1, 2)
    assert outcome.same and len(outcome.fates) == sum(event["event"] == "trial_suggested" for event in events)
    assert [(fate.trial, fate.epochs) for fate in outcome.fates] == [(f.trial, f.recorded) for f in outcome.fates]


def test_a_larger_budget_goes_on_with_the_paused_trials(search, capsys):
    folder, events = search()
    before = {event["trial"] for event in events if event["event"] == "trial_suggested"}
    ended = {event["trial"] for event in events if event["event"] == "trial_ended"}
    run(folder, **CHOICES | {"epoch_budget": 2 * MOST})
    assert "still to come" not in capsys.readouterr().out
    again = read(folder / "journal.jsonl")
    assert MOST < sum(event["event"] == "report" for event in again) <= 2 * MOST
    reported = {event["trial"] for event in again[len(events) :] if event["event"] == "report"}
    assert reported & (before - ended) and not reported & ended


@pytest.mark.parametrize("choices", [{"epoch_budget": 50, "confirm": 2, "confirm_seeds": 2}, {"epoch_budget": 21}])
def test_a_search_ends_if_no_setting_is_left_and_its_budget_lets_all_promoted_trials_wait(search, choices):
    _, events = search(num_samples=8, seed=0 if "confirm" in choices else 1, **choices)
    assert events[-1]["out_of_time"] and sum(event["event"] == "report" for event in events) < choices["epoch_budget"]


class Ending(Worker):
    """A worker whose function returns after 5 epochs."""

    def train(self):
        return {"done": True, RESULT_DUPLICATE: True} if self.epoch == 5 else super().train()


@pytest.mark.parametrize("scheduler", ["asha-promotion", "asha", "hyperband", "fifo"])
def test_functions_that_end_before_max_epochs_use_their_whole_budget(search, monkeypatch, scheduler):
    monkeypatch.setattr(Workerless, "worker", Ending)
    for most in (50, 1000):  # below and above the budget
        _, events = search(f"of-{most}", scheduler=scheduler, max_epochs=most)
        best, epochs = best_of(events)
        assert epochs[best] == 5 and MOST - 5 < sum(event["event"] == "report" for event in events) <= MOST


@pytest.mark.parametrize("scheduler", ["asha-promotion", "asha", "median"])
def test_a_budget_below_one_trial_is_used_as_the_rule_decides(search, scheduler):
    _, events = search(scheduler=scheduler, max_epochs=2 * MOST, num_samples=20)
    best, epochs = best_of(events)
    assert sum(event["event"] == "report" for event in events) >= MOST and epochs[best] > 8


@pytest.mark.parametrize("scheduler", ["asha-promotion", pytest.param("hyperband", marks=pytest.mark.slow)])
def test_a_part_of_the_budget_is_kept_for_the_trials_of_confirm(search, tmp_path, scheduler):
    choices = CHOICES | {"scheduler": scheduler, "epoch_budget": 120, "confirm": 2, "confirm_seeds": 2}
    folder, events = search(**choices)
    expected, repeats = outcome_of(folder), [event["trial"] for event in events if event.get("confirms")]
    assert len(repeats) == 4 and all(best_of(events)[1][trial] == 8 for trial in repeats)
    assert load(folder).confirmation.done and events[-1]["out_of_time"]
    assert events[-1]["reason"] == "the budget of 120 epochs is over: its last part was for --confirm"
    for at in range(len(events) - 70, len(events), 13):
        cut(folder, tmp_path / f"cut-{at}", at)
        run(tmp_path / f"cut-{at}", **choices)
        assert outcome_of(tmp_path / f"cut-{at}") == expected, f"cut after {at} events"
    run(folder, **choices | {"epoch_budget": 240})  # searches on, then confirms the best settings
    again = load(folder)
    assert again.confirmation.done and len(again.searched) > len(expected[1]) and again.stats.epochs <= 240


def test_a_cut_confirm_ends_though_its_budget_lets_a_promoted_trial_wait(search, tmp_path):
    choices = CHOICES | {"num_samples": 8, "epoch_budget": 50, "confirm": 2, "confirm_seeds": 2}
    folder, events = search(**choices)
    cut(folder, tmp_path / "cut", next(at for at, event in enumerate(events) if event.get("confirms")) + 12)
    run(tmp_path / "cut", **choices)
    assert outcome_of(tmp_path / "cut") == outcome_of(folder)


def test_a_pause_of_the_whole_search_is_no_epochs_length(monkeypatch):
    """A laptop is suspended for ten hours in an epoch of trial a, and in the start of trial b."""
    clock = Clock(monkeypatch, time_budget="20h", max_epochs=8)
    clock.event("trial_started", "a")
    clock.report("a", 1, 0.5, 12.0)
    clock.report("a", 2, 0.4)
    clock.event("trial_started", "b")
    clock.now += 36_000
    clock.stood_still(36_000)
    clock.report("a", 3, 0.3)
    assert clock.budget.epoch_s == 10 and clock.budget.rest("a").seconds == 50
    clock.report("b", 1, 0.3, after=2.0)
    assert clock.budget.epoch_s == 10 and clock.budget.cost("", 1).seconds == 12
    clock.now += 3600
    clock.stood_still(3600)
    assert clock.budget.rest("a").seconds == 48 and "an epoch takes 10 s" in clock.budget.line()
    assert clock.budget.used("time_budget") == pytest.approx(39_634)  # the time of the clock, as it was asked for
    events = [dict(event) for event in clock.events]
    experiment = Experiment(**CHOICES | {"epoch_budget": 0, "time_budget": "20h"})
    again = Budget(experiment, Resources(2, 0.5, 2), State(experiment, typed(events)))
    assert again.epoch_s == 10
    records = {trial.id: trial for trial in folding(events).records()}
    assert records["a"].epoch_seconds == 10 and records["a"].cpu_hours == pytest.approx(2 * 36_032 / 3600, rel=1e-5)


def test_confirm_leaves_half_of_each_budget_for_the_search(monkeypatch):
    clock = Clock(monkeypatch, time_budget="600s", max_epochs=8, confirm=3)
    clock.paused("a", [0.5, 0.4])
    assert clock.budget.plan(["a"], []) == ("", True)
    assert clock.budget.line().endswith("then the best settings train again with other seeds")
    clock.now = 1000 + 295  # of 300 s: nine trials on two workers would take 5 x 90 s with the slack
    assert clock.budget.plan(["a"], []) == ("", False)
    assert "is for --confirm" not in clock.budget.held("a", [], [])
    clock.event("trial_suggested", "b", confirms="a")
    assert clock.budget.plan(["a"], []) == ("", True) and "is for --confirm" in clock.budget.held("a", [], [])
    assert clock.budget.line().endswith("all of a trial's 1 min 20 s; the best settings train again with other seeds")


class Clock:
    """The clock of a budget in seconds; `hear` gets the events of a trial at their times."""

    def __init__(self, monkeypatch, **options):
        self.now = 1000.0
        monkeypatch.setattr("tuner.record.clock.now", lambda: self.now)
        rules = CHOICES | {"epoch_budget": 0} | options
        experiment = Experiment(**rules)
        self.budget = Budget(experiment, Resources(2, 0.5, 2), State(experiment))
        self.events = []

    def event(self, kind, trial, after=0.0, **fields):
        self.now += after
        started = {"resources": {"CPU": 2.0, "GPU": 0.5}, "node": ""} if kind == "trial_started" else {}
        self.hear({"event": kind, "trial": trial, "time": self.now, **started, **fields})

    def stood_still(self, seconds):
        self.hear({"event": "search_stood_still", "time": self.now, "seconds": seconds})

    def hear(self, event):
        self.events.append(event)
        heard(self.budget, event)

    def report(self, trial, epoch, loss, after=10.0):
        self.event("report", trial, after, epoch=epoch, metrics={"loss": loss})

    def paused(self, trial, losses):
        """A trial that started, took 12 s for its first epoch and 10 s for each other one, and was paused."""
        self.event("trial_started", trial)
        for epoch, loss in enumerate(losses, 1):
            self.report(trial, epoch, loss, 12.0 if epoch == 1 else 10.0)
        self.event("decision", trial, action="pause")


def test_hours_of_workers_count_up_to_now_and_pauses_do_not(monkeypatch):
    clock = Clock(monkeypatch, cpu_hours=1.0, gpu_hours=1.0)
    clock.paused("a", [1.0, 0.9])
    clock.now += 1000
    assert clock.budget.used("cpu_hours") == pytest.approx(22 * 2 / 3600)
    clock.event("trial_started", "a")
    clock.now += 5
    assert clock.budget.used("cpu_hours") == pytest.approx(27 * 2 / 3600)
    assert clock.budget.used("gpu_hours") == pytest.approx(27 * 0.5 / 3600)


def test_a_time_budget_finishes_the_best_trial_that_it_can_while_it_can(monkeypatch):
    clock = Clock(monkeypatch, time_budget="600s")
    clock.paused("slow", [0.1])
    clock.paused("good", [0.5, 0.4])
    clock.paused("poor", [0.9, 0.8])
    everything = ["slow", "good", "poor"]
    assert clock.budget.plan(everything, []) == ("", True)
    assert clock.budget.plan(everything, [], none_left=True) == ("slow", False)
    clock.now = 1000 + 600 - 91  # 92 s with the slack for a new trial's first epoch and then 7 epochs of `slow`
    assert clock.budget.plan(everything, [])[0] == "slow"
    clock.now = 1000 + 600 - 75
    assert clock.budget.plan(everything, []) == ("good", False) and "too little" not in clock.budget.line()
    clock.budget.finishing.add("good")
    assert clock.budget.plan(everything, ["good"]) == ("poor", False)
    clock.now = 1000 + 600 - 20  # nothing can be finished, but a new trial can train its first epoch
    assert clock.budget.plan(everything, []) == ("", True)
    clock.now = 1000 + 600 - 10
    assert clock.budget.plan(everything, []) == ("", False)


def test_a_trial_waits_at_a_rung_for_a_better_one_that_could_not_end_after_it(monkeypatch):
    clock = Clock(monkeypatch, time_budget="600s")
    clock.paused("good", [0.5])
    clock.paused("poor", [0.9, 0.8])
    clock.event("trial_ended", "whole", status="completed", reason="trained its 8 epochs")
    assert clock.budget.held("poor", ["good"], []) == ""
    clock.now = 1000 + 600 - 100
    assert "is for the better trial good" in clock.budget.held("poor", ["good"], [])
    assert clock.budget.held("good", ["poor"], []) == ""
    clock.now = 1000 + 600 - 60
    assert "its other 7 epochs need more than is left of the time budget" in clock.budget.held("good", [], [])


def test_a_dear_start_is_not_taken_for_a_dear_epoch(monkeypatch):
    clock = Clock(monkeypatch, time_budget="600s", max_epochs=50)
    for number in range(9):
        clock.event("trial_started", f"{number}")
        clock.report(f"{number}", 1, number, after=21.0)
        clock.event("decision", f"{number}", action="pause")
    assert clock.budget.line().endswith("of the time budget of 600s")  # no trial has trained two epochs in one run
    assert clock.budget.held("0", ["1"], []) == "" and clock.budget.plan(["1"], []) == ("", True)
    clock.event("trial_started", "0")
    clock.report("0", 2, 0.0, after=21.0)
    clock.report("0", 3, 0.0, after=1.0)
    assert clock.budget.rest("0").seconds == pytest.approx(47)  # it has started
    clock.now += 0.5
    assert clock.budget.rest("0").seconds == pytest.approx(46.5)
    clock.event("decision", "0", action="pause")
    assert clock.budget.rest("0").seconds == pytest.approx(20 + 47)
    assert clock.budget.rest("1").seconds == pytest.approx(20 + 49)


def test_no_setting_takes_what_the_best_trial_needs_to_its_end(monkeypatch):
    clock = Clock(monkeypatch, cpu_hours=2 * 100 / 3600, max_epochs=22)
    for trial in ("best", "other"):
        clock.event("trial_started", trial)
        clock.report(trial, 1, 0.5, after=3.0)
        clock.report(trial, 2, 0.5, after=1.0)
        clock.event("decision", trial, action="pause")
    clock.event("trial_started", "failed")
    clock.event("trial_failed", "failed", after=92 - 24.5)  # 24.5 s are left
    assert clock.budget.plan(["best", "other"], []) == ("best", False)
    clock.budget.finishing.add("best")
    clock.event("trial_started", "best")
    clock.report("best", 3, 0.4, after=3.0)
    assert clock.budget.plan(["other"], ["best"]) == ("", False)
    assert clock.budget.line().endswith("the best trials train to their last epoch: best")


def test_the_default_of_max_epochs_of_a_script_says_nothing_of_its_length(monkeypatch):
    clock = Clock(monkeypatch, time_budget="600s", epoch_budget=100, max_epochs=1000)
    clock.paused("a", [0.5, 0.4])
    assert not clock.budget.too_long() and clock.budget.line().endswith("; an epoch takes 10 s")
    clock.event("length_learned", "a", epochs=2, rungs=[1])
    clock.event("trial_ended", "a", status="completed", reason=RETURNED)
    assert "all of a trial's 20 s; about" in clock.budget.line()


def test_the_trials_to_finish_are_ordered_by_what_the_rungs_compare(monkeypatch):
    goals = {"metric": "accuracy", "mode": "max", "prune_by": "score", "prune_mode": "max"}
    clock = Clock(monkeypatch, time_budget="600s", **goals)
    for trial, score in (("good", 0.9), ("poor", 0.2)):
        clock.event("trial_started", trial)
        for epoch in (1, 2):
            clock.event("report", trial, 10.0, epoch=epoch, metrics={"score": score, "accuracy": 1 - score})
        clock.event("decision", trial, action="pause")
    clock.now = 1000 + 600 - 85
    assert clock.budget.plan(["poor", "good"], []) == ("good", False)


def test_with_several_metrics_a_report_may_change_which_trial_is_finished(monkeypatch):
    clock = Clock(monkeypatch, time_budget="600s", metric=("loss", "size"), mode=("min", "min"))
    for trial, reports in (("a", [0.5, 0.5]), ("b", [0.4, 0.4]), ("a", [0.3, 0.3])):
        clock.event("trial_started", trial)
        for epoch, value in enumerate(reports, 1):
            clock.event("report", trial, 10.0, epoch=epoch, metrics={"loss": value, "size": value})
        clock.event("decision", trial, action="pause")
        clock.now, before = 1000 + 600 - 85, clock.now
        best, clock.now = clock.budget.plan(sorted(clock.budget.state.trials), [])[0], before
        assert best == trial


def test_only_the_best_trial_may_overrun_a_budget(monkeypatch):
    clock = Clock(monkeypatch, time_budget="600s", scheduler="asha-promotion")
    clock.paused("good", [0.5])
    clock.event("trial_started", "good")
    clock.now = 1601
    assert clock.budget.over() == "the time budget of 600s is over"
    clock.budget.finishing.add("good")
    assert clock.budget.over() == ""
    clock.now = 1000 + 600 * OVERRUN
    assert clock.budget.over()


def test_budgets_count_the_sessions_before(monkeypatch):
    history = [{"event": "experiment_started", "time": 10.0}, {"event": "experiment_finished", "time": 50.0}]
    history[1] |= {"state": "finished"}
    experiment = Experiment(time_budget="100s")
    budget = Budget(experiment, Resources(1, 0, 1), State(experiment, typed(history)))
    assert 40 <= budget.used("time_budget") < 50


def test_the_line_says_what_is_used_what_an_epoch_costs_and_what_is_planned(monkeypatch):
    clock = Clock(monkeypatch, time_budget="600s", epoch_budget=1000, scheduler="asha-promotion", max_epochs=8)
    used = "0 s of the time budget of 600s and 0 epochs of the budget of 1000 epochs"
    assert clock.budget.line() == f"budget: {used}"
    clock.paused("good", [0.5, 0.4])
    clock.now = 1200
    # Two workers have 400 s each, of which 80 s are for the last trial; a setting takes 2.5 epochs of 10 s.
    cost = "an epoch takes 10 s, all of a trial's 1 min 20 s"
    then = "about 25 more settings, then the best trials train to their last epoch"
    assert clock.budget.line().endswith(f"{cost}; {then}")
    clock.now = 1500
    clock.budget.finishing.add("good")
    clock.event("trial_started", "good")
    assert clock.budget.line().endswith("the best trials train to their last epoch: good")
    clock.now = 1601
    assert clock.budget.line().endswith("; it is used up")


def test_the_line_counts_no_more_settings_than_the_searcher_has():
    experiment = Experiment(num_samples=2, max_epochs=8, epoch_budget=1000)
    assert Budget(experiment, Resources(1, 0, 1), State(experiment), 6).num_settings(1.0) == 6


@pytest.mark.parametrize(("amount", "text"), [(0, "0"), (0.0561, "0.056"), (123.4, "123.4"), (2500, "2,500")])
def test_hours_are_shown_without_exponents(monkeypatch, amount, text):
    clock = Clock(monkeypatch, cpu_hours=5000.0)
    clock.event("trial_started", "a")
    clock.now += 3600 * amount / 2
    assert clock.budget.line() == f"budget: {text} CPU-hours of the budget of 5000 CPU-hours"


def test_a_trial_that_alone_needs_more_than_the_budget_is_noted_once(monkeypatch):
    clock, notes = Clock(monkeypatch, cpu_hours=0.01, max_epochs=10), []
    clock.budget.on_notice = notes.append
    clock.paused("a", [0.5])
    assert not notes  # the first epoch may include the start of a worker
    clock.paused("b", [0.5, 0.4, 0.3])
    (note,) = notes
    assert note.startswith(
        "--cpu-hours 0.01: too little for a trial of 10 epochs, which takes 0.057 CPU-hours; raise it"
    )
