"""Budgets: what a search has spent, when it takes no more settings, which trials it finishes, and its resume."""

import pytest
from killing import cut
from workerless import KEPT, MANAGER, Workerless, learn, outcome_of, run

from tuner.record.reading import read
from tuner.record.results import load
from tuner.spec.experiment import Experiment
from tuner.spec.resources import Resources
from tuner.tuning.budget import OVERRUN, Budget
from tuner.views.whatif import what_if

RULES = Experiment(scheduler="asha-promotion", max_epochs=8)  # rungs after 1, 2 and 4 epochs
MOST = 60
CHOICES = {"scheduler": "asha-promotion", "max_epochs": 8, "num_samples": 0, "epoch_budget": MOST}


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
    assert epochs[best] == RULES.max_epochs
    assert MOST - RULES.max_epochs < sum(event["event"] == "report" for event in events) <= MOST
    last = events[-1]
    assert (last["state"], last["out_of_time"]) == ("finished", True)
    assert "the budget of 60 epochs is over" in last["reason"]
    ended = {event["trial"]: event["status"] for event in events if event["event"] == "trial_ended"}
    assert "interrupted" not in ended.values()


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


def test_a_larger_budget_goes_on_with_the_paused_trials(search):
    folder, events = search()
    before = {event["trial"] for event in events if event["event"] == "trial_suggested"}
    ended = {event["trial"] for event in events if event["event"] == "trial_ended"}
    run(folder, **CHOICES | {"epoch_budget": 2 * MOST})
    again = read(folder / "journal.jsonl")
    assert MOST < sum(event["event"] == "report" for event in again) <= 2 * MOST
    reported = {event["trial"] for event in again[len(events) :] if event["event"] == "report"}
    assert reported & (before - ended) and not reported & ended


class Clock:
    """The clock of a budget in seconds; `hear` gets the events of a trial at their times."""

    def __init__(self, monkeypatch, **options):
        self.now = 1000.0
        monkeypatch.setattr("tuner.tuning.budget.time.monotonic", lambda: self.now)
        monkeypatch.setattr("tuner.tuning.budget.time.time", lambda: self.now)
        self.budget = Budget(Experiment(num_samples=0, **options), Resources(2, 0.5, 2))

    def event(self, kind, trial, after=0.0, **fields):
        self.now += after
        resources = {"resources": {"CPU": 2.0, "GPU": 0.5}} if kind == "trial_started" else {}
        self.budget.hear({"event": kind, "trial": trial, "time": self.now, **resources, **fields})

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
    assert clock.budget.plan(everything, [], RULES) == ("", True)
    clock.now = 1000 + 600 - 95  # 88 s with the slack for 7 epochs and a start: a new trial of 8 could not end
    assert clock.budget.plan(everything, [], RULES)[0] == "slow"
    clock.now = 1000 + 600 - 75
    assert clock.budget.plan(everything, [], RULES) == ("good", False)
    clock.budget.finishing.add("good")
    assert clock.budget.plan(everything, ["good"], RULES) == ("poor", False)
    clock.now = 1000 + 600 - 20  # nothing can be finished, but a new trial can train its first epoch
    assert clock.budget.plan(everything, [], RULES) == ("", True)
    clock.now = 1000 + 600 - 10
    assert clock.budget.plan(everything, [], RULES) == ("", False)


def test_a_trial_waits_at_a_rung_for_a_better_one_that_could_not_end_after_it(monkeypatch):
    clock = Clock(monkeypatch, time_budget="600s")
    clock.paused("good", [0.5])
    clock.paused("poor", [0.9, 0.8])
    assert clock.budget.held("poor", ["good"], [], RULES) == ""
    clock.now = 1000 + 600 - 110
    assert "is for the better trial good" in clock.budget.held("poor", ["good"], [], RULES)
    assert clock.budget.held("good", ["poor"], [], RULES) == ""
    clock.now = 1000 + 600 - 60
    assert "its other 7 epochs need more than is left of the time budget" in clock.budget.held("good", [], [], RULES)


def test_the_trials_to_finish_are_ordered_by_what_the_rungs_compare(monkeypatch):
    goals = {"metric": "accuracy", "mode": "max", "prune_by": "score", "prune_mode": "max"}
    clock = Clock(monkeypatch, time_budget="600s", **goals)
    for trial, score in (("good", 0.9), ("poor", 0.2)):
        clock.event("trial_started", trial)
        clock.event("report", trial, 10.0, epoch=1, metrics={"score": score, "accuracy": 1 - score})
        clock.event("decision", trial, action="pause")
    clock.now = 1000 + 600 - 85
    assert clock.budget.plan(["poor", "good"], [], RULES) == ("good", False)


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
    budget = Budget(Experiment(time_budget="100s"), Resources(1, 0, 1), history)
    assert 40 <= budget.used("time_budget") < 50


def test_the_line_says_what_is_used_what_an_epoch_costs_and_what_is_planned(monkeypatch):
    clock = Clock(monkeypatch, time_budget="600s", epoch_budget=1000, scheduler="asha-promotion", max_epochs=8)
    used = "0 s of the time budget of 600s and 0 epochs of the budget of 1000 epochs"
    assert clock.budget.line() == f"budget: {used}"
    clock.paused("good", [0.5, 0.4])
    clock.now = 1200
    # Two workers have 400 s each, of which 80 s are for the last trial; a setting takes 2.5 epochs of 10 s.
    cost = "an epoch takes 10 s, all of a trial's 1 m 20 s"
    then = "about 25 more settings, then the best trials train to their last epoch"
    assert clock.budget.line().endswith(f"{cost}; {then}")
    clock.now = 1550
    clock.budget.finishing.add("good")
    clock.event("trial_started", "good")
    assert clock.budget.line().endswith("the best trials train to their last epoch: good")


def test_a_trial_that_alone_needs_more_than_the_budget_is_noted_once(monkeypatch):
    clock, notes = Clock(monkeypatch, cpu_hours=0.01, max_epochs=10), []
    clock.budget.on_notice = notes.append
    clock.paused("a", [0.5])
    assert not notes  # the first epoch may include the start of a worker
    clock.paused("b", [0.5, 0.4, 0.3])
    (note,) = notes
    assert note.startswith("--cpu-hours 0.01: a trial of 10 epochs takes 0.056 CPU-hours, so none can train to its end")
