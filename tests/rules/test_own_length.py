"""Trials that end by themselves long before --max-epochs: the rungs follow their length, and what was saved is true."""

import random
from dataclasses import replace

import pytest
from ray.tune.result import RESULT_DUPLICATE
from workerless import KEPT, MANAGER, Worker, Workerless, outcome_of, resumed, run

from tuner.record.events import RETURNED
from tuner.record.reading import read
from tuner.record.records import Decision, Report, TrialRecord
from tuner.record.results import ExperimentRecord, load
from tuner.record.saved_experiment import save_experiment
from tuner.rules.asha import Asha
from tuner.rules.own_length import OwnLength, at_length
from tuner.spec.experiment import Experiment
from tuner.views.figures.curves import draw_curves
from tuner.views.verdict import verdict_of
from tuner.views.whatif import reproduced, what_if

# As `auto` chooses for the script of a stranger: at most 1,000 reports, so the first rung is at epoch 40.
UNKNOWN = {"max_epochs": 1000, "grace_period": 40, "auto_grace": True}
LENGTHS = {2: 5, 4: 9, 8: 14}  # `width` -> epochs after which the function returns


class Ending(Worker):
    """A worker whose function returns after 10 epochs."""

    def length(self):
        return 10

    def train(self):
        if self.epoch >= self.length():
            return {"done": True, RESULT_DUPLICATE: True}
        return super().train()


class Unequal(Ending):
    def length(self):
        return LENGTHS[self.setting["width"]]


def workers(monkeypatch, kind):
    monkeypatch.setattr(MANAGER, type("OfKind", (Workerless,), {"worker": kind}))


def searched(folder, **choices):
    run(folder, **choices)
    named = {"results": str(folder.parent), "name": folder.name, "space": "x.py"}
    save_experiment(Experiment(**named, **choices), folder, {})
    return load(folder), [event for event in read(folder / "journal.jsonl") if event["event"] == "length_learned"]


@pytest.mark.parametrize("scheduler", ["asha", "asha-promotion"])
def test_the_rungs_move_to_the_length_of_the_first_trial(one_ray, tmp_path, monkeypatch, scheduler):
    workers(monkeypatch, Ending)
    record, learned = searched(tmp_path / "e", scheduler=scheduler, num_samples=12, **UNKNOWN)
    assert [(event["trial"], event["epochs"], event["rungs"]) for event in learned] == [("00000", 10, [1, 2, 4, 8])]
    assert "after 10 epochs; they are compared after epochs 1, 2, 4, 8" in learned[0]["reason"]
    assert record.stats.counts["pruned"] >= 4
    assert (record.rules.max_epochs, record.rules.grace_period) == (10, 1)
    assert [line["x0"] for line in draw_curves(record)["layout"]["shapes"]] == [1, 2, 4, 8]
    verdict, trained = verdict_of(record), record.stats.epochs
    assert (verdict.epochs_saved, verdict.about("rule")[:6]) == (120 - trained, "Trials")
    assert verdict.about("saved").startswith(f"About {120 - trained} of 120 epochs")
    # A replay of the search's own rules moves the rungs at the same place.
    stopped = sum(rung.stopped for rung in record.stats.rungs)
    assert reproduced(record) == stopped > 0
    own = what_if(record, scheduler, 1, 2)
    assert own.same and own.epochs.least == own.epochs.most == trained
    other = what_if(record, "asha", 2, 3)
    assert not other.same and other.epochs.most <= 120 and any("after 10 epochs at most" in n for n in other.notes)


@pytest.mark.parametrize("kind", [Ending, Unequal])
@pytest.mark.parametrize("scheduler", ["asha", "asha-promotion"])
def test_a_search_that_is_cut_goes_on_with_the_same_rungs(one_ray, tmp_path, monkeypatch, kind, scheduler):
    workers(monkeypatch, kind)
    monkeypatch.setattr(*KEPT)
    choices = {"scheduler": scheduler, "num_samples": 9, **UNKNOWN}
    folder = tmp_path / "whole"
    run(folder, **choices)

    def whole(at):
        return outcome_of(at), [
            (e["epochs"], e["rungs"]) for e in read(at / "journal.jsonl") if e["event"] == "length_learned"
        ]

    expected, stream, at = whole(folder), random.Random(f"{kind} {scheduler}"), 0
    assert expected[1]
    while (at := at + stream.randint(3, 15)) < len(read(folder / "journal.jsonl")):
        folder = resumed(folder, at, **choices)
        assert whole(folder) == expected, f"cut after {at} events"


def test_the_rungs_grow_with_a_longer_trial(one_ray, tmp_path, monkeypatch):
    workers(monkeypatch, Unequal)
    record, learned = searched(tmp_path / "e", scheduler="asha", num_samples=30, seed=1, **UNKNOWN)
    ends = [trial.reports[-1].epoch for trial in record.trials if trial.status == "completed"]
    lengths = [event["epochs"] for event in learned]
    assert lengths == sorted(set(lengths)) and lengths[-1] == max(ends) == record.length
    assert len(lengths) > 1 and reproduced(record) == record.stats.counts["pruned"]


def test_trials_that_stop_ends_teach_nothing(one_ray, tmp_path, monkeypatch):
    workers(monkeypatch, Ending)
    _, learned = searched(tmp_path / "e", num_samples=4, stop=(f"training_iteration={3}",), **UNKNOWN)
    assert learned == []


def test_earlier_reports_count_at_the_new_rungs():
    rules = Experiment(**UNKNOWN)
    own, known = OwnLength(rules, 1), Asha(at_length(rules, 8), 1)
    for trial in range(3):
        for epoch in range(1, 9):
            value = float(trial)
            assert own.judge(trial, epoch, value)[0].rung is None
            if epoch < 8:
                known.judge(trial, epoch, value)
        own.ended(trial, 8, value)
        known.ended(trial, 8, value)
    assert own.learn_length(8, set()) == [] and own.learn_length(5, set()) == [] and own.in_force == at_length(rules, 8)
    for epoch in range(1, 8):
        assert own.judge(3, epoch, 0.5) == known.judge(3, epoch, 0.5)
    assert own.judge(4, 1, 9.0) == known.judge(4, 1, 9.0) and known.judge(5, 1, 9.0)[0].action == "stop"


@pytest.mark.parametrize(("epochs", "grace"), [(4, 1), (49, 1), (50, 2), (200, 8), (999, 39)])
def test_the_grace_period_of_auto_is_a_share_of_the_length(epochs, grace):
    rules = Experiment(**UNKNOWN)
    assert (at_length(rules, epochs).grace_period, at_length(rules, epochs).max_epochs) == (grace, epochs)
    held = at_length(replace(rules, auto_grace=False), epochs)
    assert held.grace_period == min(40, epochs)
    assert at_length(rules, 0) == at_length(rules, 1000) == rules
    many = replace(rules, reduction_factor=1.035)  # 94 rungs from epoch 40 to 1,000; from 1 to 49 there would be 113
    assert len(at_length(many, epochs).rungs()) <= 100


def ended(number, trained, status="completed", rung=None):
    reports = tuple(Report(e, {"loss": 1 + number / 100}, None, e, 100 * number + e) for e in range(1, trained + 1))
    decisions = () if rung is None else (Decision(rung, rung, 0, 1.0, 0.5, 9, "stop", "why"),)
    took = {"seconds": 30.0 + 2 * trained, "epoch_seconds": 2.0 if trained > 1 else None}
    reason = RETURNED if status == "completed" else "r"
    return TrialRecord(f"{number:05}", {"lr": 0.1 * number}, status, reason, reports, decisions, **took)


def saved(*trials, state="finished", **options):
    experiment = Experiment(**{"space": "x.py", "max_epochs": 16, "name": "e", "results": "/nowhere", **options})
    verdict = verdict_of(ExperimentRecord(experiment, {}, trials, state))
    return verdict.epochs_saved, verdict.seconds_saved, verdict.about("saved")


def test_only_what_a_rule_stopped_was_saved_against_the_length_of_the_others():
    stopped = [ended(n, 1, "pruned", rung=1) for n in (5, 6)]
    epochs, seconds, text = saved(ended(0, 4), ended(1, 4), *stopped)
    assert (epochs, seconds) == (6, 12.0) and text.startswith("About 6 of 16 epochs (38 %) and 12 s on workers.")
    assert "lets each of the 2 trials that asha stopped train 4 epochs at the search's median speed." in text
    # A trial with a speed of its own counts at it: the start of its worker is in neither.
    slow = replace(ended(7, 2, "pruned", rung=2), epoch_seconds=5.0)
    epochs, seconds, text = saved(ended(0, 4), ended(1, 4), *stopped, slow)
    assert (epochs, seconds) == (8, 22.0) and "at its own speed (2 of them at the search's median speed)." in text
    one = saved(ended(0, 4), slow)
    assert one[:2] == (2, 10.0) and one[2].endswith("lets the trial that asha stopped train 4 epochs at its own speed.")
    # No trial reported twice in one attempt: nothing is known of the seconds.
    unknown = saved(replace(ended(0, 4), epoch_seconds=None), *stopped)
    assert unknown[:2] == (6, 0.0) and "epochs (50 %). This" in unknown[2]
    assert unknown[2].endswith("stopped train 4 epochs.")
    # Every trial diverged: no rule stopped one.
    nan = (Decision(1, None, None, None, None, 0, "stop", "the training diverged"),)
    diverged = [replace(ended(n, 1, "pruned"), decisions=nan) for n in range(3)]
    assert saved(*diverged, ended(3, 4)) == (0, 0.0, "")
    # No trial has ended by itself yet: how many epochs the stopped ones would have trained is unknown.
    assert saved(*stopped, ended(0, 3, "running"), state="running") == (0, 0.0, "")
    # --stop ended some: they say nothing about the length.
    assert saved(ended(0, 4), *stopped, stop=("loss=0",)) == (0, 0.0, "")
    # Of trials of unequal length, the longest is a bound.
    bound = saved(ended(0, 4), ended(1, 9), ended(5, 1, "pruned", rung=1))
    assert bound[0] == 8 and bound[2].startswith("At most 8 of 22 epochs (36 %)")
    assert "as long as the longest of the others (9 epochs)" in bound[2]


@pytest.mark.parametrize(
    ("length", "why"),
    [(0, "compares trials after epoch 40, and they ended after 10 or fewer"), (10, "the others had passed the rungs")],
)
def test_a_search_whose_trials_passed_the_rungs_says_why_it_pruned_nothing(length, why):
    experiment = Experiment(space="x.py", name="e", results="/nowhere", **UNKNOWN)
    trials = tuple(ended(n, 10) for n in range(3))
    verdict = verdict_of(ExperimentRecord(experiment, {}, trials, "finished", length=length))
    assert f"{why}. Give --max-epochs 10." in verdict.about("warning")
    assert [point.term for point in verdict.points].count("warning") == 1
    assert verdict.steps[0].command.endswith("--max-epochs 10")
    assert length or verdict.about("pruned") == "0 of 3 trials: no trial was compared with another."
