"""Promoting ASHA: searches by Ray's controller and the plain rule, compared with Algorithm 2 written another way."""

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import read
from ray.exceptions import RayActorError
from tiers import further
from workerless import CHOICES, KEPT, MANAGER, Worker, Workerless, failing, now_and_then, outcome_of, resumed, run

from tuner.core.rules.promotion import Promotion
from tuner.core.rules.rule import Brackets
from tuner.record.results import load
from tuner.record.saved_experiment import save_experiment
from tuner.spec.experiment import Experiment
from tuner.views.verdict import verdict_of
from tuner.views.whatif import reproduced, what_if


class Algorithm2:
    """Promoting ASHA as the paper writes it: each question sorts all trials of a rung anew."""

    def __init__(self, rules):
        self.rules, self.draw = rules, Brackets(rules, rules.brackets)
        self.at = {}  # (bracket, rung) -> trial -> value, in the order of arrival
        self.promoted = set()  # (bracket, rung, trial)
        self.waiting = {}  # trial -> (bracket, rung)
        self.completed = set()

    def rungs(self, bracket):
        epochs = (self.rules.grace_period * self.rules.reduction_factor**k for k in itertools.count(bracket))
        return list(itertools.takewhile(lambda epoch: epoch < self.rules.max_epochs, epochs))

    def promotable(self, at):
        """The trials among the best 1/eta of a rung that were not promoted, the best first."""
        values = self.at[at]
        if self.rules.start_from and at == (0, self.rules.grace_period) and len(values) < 6:
            return []
        best = sorted(values, key=lambda trial: values[trial])[: math.floor(len(values) / self.rules.reduction_factor)]
        return [t for t in best if (*at, t) not in self.promoted]

    def report(self, trial, epoch, value):
        """The trials that wait, and those that are promoted, after a report."""
        if trial in self.waiting:  # its pause failed, and it trains on
            self.promote(trial)
        bracket = self.draw.of(trial)
        done = {rung for b, rung in self.at if b == bracket and trial in self.at[b, rung]}
        new = [rung for rung in self.rungs(bracket) if rung <= epoch and rung > max(done, default=0)]
        if not new:
            return []
        at = bracket, max(new)
        self.at.setdefault(at, {})[trial] = value
        self.waiting[trial] = at
        return [self.promote(t) for t in self.promotable(at) if t in self.waiting]

    def promote(self, trial):
        self.promoted.add((*self.waiting.pop(trial), trial))
        return trial

    def end(self, trial, completed):
        if trial in self.waiting:
            self.promote(trial)
        if completed:
            self.completed.add(trial)

    def idle(self):
        """("stop", trials) or ("continue", [trial])."""
        if self.completed:
            stopped, self.waiting = list(self.waiting), {}
            return "stop", stopped
        highest = max(rung for _, rung in self.waiting.values())
        top = [t for t, (_, rung) in self.waiting.items() if rung == highest]
        return "continue", [self.promote(min(top, key=lambda t: self.at[self.waiting[t]][t]))]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_rule_decides_as_algorithm_2(data):
    eta, grace = data.draw(st.sampled_from([2, 2.5, 3])), data.draw(st.integers(1, 3))
    most = data.draw(st.integers(max(grace, 2), 12))
    rules = Experiment(scheduler="asha-promotion", max_epochs=most, grace_period=grace, reduction_factor=eta)
    rules = replace(rules, brackets=data.draw(st.integers(1, len(rules.rungs()))))
    rules = replace(rules, start_from=data.draw(st.sampled_from([(), ("past",)])))
    rule, paper = Promotion(rules, rules.brackets), Algorithm2(rules)
    running, epochs, num = {}, {}, data.draw(st.integers(1, 25))
    slots, stopped, suggested = data.draw(st.integers(1, 4)), set(), 0
    values = st.integers(0, 9)  # many are equal
    while True:
        while len(running) < slots and suggested < num:
            rule.added(suggested)
            running[suggested], epochs[suggested] = True, 0
            suggested += 1
        if not running:
            decided = rule.idle()
            if not decided:
                break
            assert (decided[0][1].action, [t for t, _ in decided]) == paper.idle()
            for trial, judged in decided:
                stopped |= {trial} if judged.action == "stop" else set()
                running |= {trial: True} if judged.action == "continue" else {}
            continue
        trial = data.draw(st.sampled_from(sorted(running)))
        epochs[trial] += 1
        value, fails = float(data.draw(values)), data.draw(st.integers(0, 19)) == 0
        if fails or epochs[trial] == most:
            del running[trial]
            assert rule.ended(trial, epochs[trial], None if fails else value) == []
            paper.end(trial, not fails)
            continue
        saved = trial % 5 != 4  # a trial that cannot wait for a promotion stops, which completes no training
        judged, others = rule.judge(trial, epochs[trial], value, saved=saved)
        promoted = paper.report(trial, epochs[trial], value)
        assert judged.action == (("pause" if saved else "stop") if trial in paper.waiting else "continue")
        if judged.action != "continue":
            del running[trial]
        if judged.action == "stop":
            assert rule.ended(trial, epochs[trial], value) == []
            paper.end(trial, False)
        settled = [t for t, each in others if each.action == "continue"]
        assert settled == [t for t in promoted if t != trial]
        running |= dict.fromkeys(settled, True)
    assert not paper.waiting
    assert stopped or suggested == num


def lost(manager, worker, method, args, kwargs):
    """A task that ends its worker process."""
    raise RayActorError


def search(tmp_path, monkeypatch, seed, name="one", **fixed):
    """One random search to its end; returns its choices and its folder."""
    chance = random.Random(seed)
    monkeypatch.setattr(MANAGER, Workerless)
    monkeypatch.setattr(Workerless, "num_cpus", slots := chance.randint(1, 4))
    most = chance.choice([2, 4, 6, 9])
    choices = {"seed": seed, "scheduler": "asha-promotion", "num_samples": chance.randint(1, 30), "max_epochs": most}
    choices |= {"reduction_factor": chance.choice([2, 2.5, 3]), "grace_period": min(most, chance.randint(1, 3))}
    rungs = len(Experiment(**choices).rungs())
    choices["brackets"] = chance.randint(1, rungs) if chance.random() < 1 / 3 else 1
    choices |= fixed
    if seed % 4 == 1:
        monkeypatch.setattr(Worker, "train", failing(chance, Worker.train))
    if seed % 4 == 2:
        monkeypatch.setattr(Workerless, "answer_of", now_and_then(chance, Workerless.answer_of, lost))
    if seed % 4 == 3:
        train = Worker.train
        diverging = now_and_then(chance, train, lambda worker: {**train(worker), "loss": math.nan})
        monkeypatch.setattr(Worker, "train", diverging)
    run(tmp_path / name, concurrent=slots, **choices)
    return choices, tmp_path / name


FIRST = [0, 5, 7, 18]


@pytest.mark.parametrize("seed", [*FIRST, *further([n for n in range(150) if n not in FIRST], 2)])
def test_every_search_ends_and_what_if_repeats_its_decisions(one_ray, tmp_path, monkeypatch, seed):
    choices, folder = search(tmp_path, monkeypatch, seed)
    events, rules = read(folder / "journal.jsonl"), Experiment(**choices)
    ends = {e["trial"]: e["status"] for e in events if e["event"] == "trial_ended"}
    assert len(ends) == choices["num_samples"]
    could = any(status in ("completed", "pruned") for status in ends.values())
    diverged = sum("diverged" in e["reason"] for e in events if e["event"] == "trial_ended")
    if could and diverged < list(ends.values()).count("pruned"):
        assert "completed" in ends.values()
    save_experiment(Experiment(space="tiny.py", results=str(tmp_path), name="one", **choices), folder, {})
    record = load(folder)
    assert reproduced(record) == sum(t.status == "pruned" and t.decisions[-1].rung is not None for t in record.trials)
    own = what_if(record, "asha-promotion", rules.grace_period, rules.reduction_factor, rules.brackets)
    assert (own.same, own.exact, own.epochs.least, own.epochs.most) == (True, True, *[own.epochs_recorded] * 2)


@pytest.fixture
def whole(one_ray, tmp_path, monkeypatch):
    """`whole(...)` runs a search with one trial at a time to its end; gives its folder."""
    monkeypatch.setattr(MANAGER, Workerless)
    monkeypatch.setattr(*KEPT)

    def searched(name="whole", **choices):
        run(tmp_path / name, **CHOICES | {"scheduler": "asha-promotion"} | choices)
        return tmp_path / name

    return searched


def kinds(folder):
    return [event["event"] for event in read(folder / "journal.jsonl")]


def test_a_waiting_trial_that_ends_or_that_the_budget_finishes_is_not_promoted():
    rule = Promotion(Experiment(scheduler="asha-promotion", max_epochs=8, grace_period=1, reduction_factor=2), 1)
    assert rule.judge(0, 1, 0.1)[0].action == "pause"
    rule.ended(0, 0, None)
    decision, others = rule.judge(1, 1, 0.5)
    assert (decision.action, others, set(rule.waiting)) == ("pause", [], {1})


def test_poor_known_settings_send_no_trial_up():
    rule = Promotion(Experiment(scheduler="asha-promotion", max_epochs=8, start_from=("past",)), 1)
    losses = [9.0, 8.0, 7.0, 1.0, 2.0, 3.0]
    *waiting, (last, promoted) = [rule.judge(trial, 1, loss) for trial, loss in enumerate(losses)]
    assert {(judged.action, judged.cutoff, len(others)) for judged, others in waiting} == {("pause", None, 0)}
    assert waiting[2][0].reason.endswith(
        "loss 7, only 3 trials have reached it; the first promotion waits for 6 trials there, as those of --start-from "
        "may be poor"
    )
    assert (last.action, last.cutoff, [trial for trial, _ in promoted]) == ("continue", 3, [3, 4])


@pytest.mark.parametrize("more", [{"num_samples": 14}, {"max_epochs": 7}], ids=str)
def test_an_extended_search_repeats_how_it_closed_before(whole, more):
    """The first session ends with promotions and stops that a longer search would not have made."""
    folder = whole(num_samples=6)
    first = outcome_of(folder)
    assert any("to the end of the search" in reason for reason in first[1].values())
    choices = {"scheduler": "asha-promotion", "num_samples": 6} | more
    run(folder, **CHOICES | choices)
    expected, begun = outcome_of(folder), kinds(folder).index("experiment_resumed") + 1
    assert expected[0][: len(first[0])] == first[0] and len(expected[0]) > len(first[0])
    for at in range(begun, len(kinds(folder)), 13):
        target = resumed(folder, at, **choices)
        assert outcome_of(target) == expected, f"cut after {at} events"


def decided(folder):
    """The decisions, without the reports: a trial without a checkpoint trains its epochs again after a cut."""
    return [event for event in outcome_of(folder)[0] if event["event"] == "decision"]


def test_trials_without_checkpoints_are_stopped_as_by_asha(whole, monkeypatch, capsys):
    train, unsaved = Worker.train, {"should_checkpoint": False, "checkpoint_dir_name": None}
    monkeypatch.setattr(Worker, "train", lambda worker: {**train(worker), **unsaved})
    folder, theirs = whole(), whole("asha", scheduler="asha")
    assert outcome_of(folder) == outcome_of(theirs)
    assert kinds(folder).count("scheduler_changed") == 1 and "scheduler_changed" not in kinds(theirs)
    assert capsys.readouterr().out.count("NOTE: the trials save no checkpoint") == 1
    save_experiment(Experiment(space="tiny.py", results=str(folder.parent), name="whole", scheduler="asha-promotion",
                               **CHOICES), folder, {})  # fmt: skip
    record = load(folder)
    assert "stops trials instead of pausing them" in verdict_of(record).about("rule")
    assert reproduced(record) == sum(t.status == "pruned" for t in record.trials) > 0
    for at in range(1, len(kinds(folder)), 11):
        target = resumed(folder, at, scheduler="asha-promotion")
        assert decided(target) == decided(folder), f"cut after {at} events"
        assert kinds(target).count("scheduler_changed") == 1


def test_a_promoted_trial_runs_before_a_new_one(whole):
    """With one place, the trial that is promoted as another pauses runs next, though settings are left."""
    events = read(whole(num_samples=20) / "journal.jsonl")
    suggested = [n for n, event in enumerate(events) if event["event"] == "trial_suggested"]
    promoted = [
        (event["trial"], next(e["trial"] for e in events[n:] if e["event"] == "trial_started"))
        for n, event in enumerate(events[: suggested[-1]])
        if event["event"] == "decision" and event["action"] == "continue" and events[n - 1]["trial"] != event["trial"]
    ]
    assert promoted and all(trial == started for trial, started in promoted)
