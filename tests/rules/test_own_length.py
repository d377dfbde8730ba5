"""Trials that end by themselves long before --max-epochs: the rungs follow their length, and what was saved is true."""

import random
from dataclasses import replace

import pytest
from journals import folding, read
from ray.tune.result import RESULT_DUPLICATE
from workerless import KEPT, MANAGER, Worker, Workerless, outcome_of, resumed, run

from tuner.core.rules.asha import Asha
from tuner.core.rules.order import agreement
from tuner.core.rules.own_length import NUM_COMPARED, OwnLength, at_length
from tuner.record.results import load
from tuner.record.saved_experiment import save_experiment
from tuner.spec.experiment import Experiment, milestones
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


class Steady(Worker):
    """A worker whose trials keep their order from the first epoch on."""

    def train(self):
        result = super().train()
        self.report["loss"] = result["loss"] = int(self.trial) * 7 % 31 + 1 / self.epoch
        return result


def workers(monkeypatch, kind):
    monkeypatch.setattr(MANAGER, type("OfKind", (Workerless,), {"worker": kind}))


def searched(folder, **choices):
    run(folder, **choices)
    named = {"results": str(folder.parent), "name": folder.name, "space": "x.py"}
    save_experiment(Experiment(**named, **choices), folder, {})
    return load(folder), [event for event in read(folder / "journal.jsonl") if event["event"] == "length_learned"]


def check_rungs(record):
    """A rung has the trials that the rule counts there, also those that had passed it before it was placed."""
    decided = [(d.rung, d.recorded + 1) for trial in record.trials for d in trial.decisions if d.rung is not None]
    r = record.rules
    rungs = [at for at in record.stats.rungs if at.rung in milestones(r.max_epochs, r.grace_period, r.reduction_factor)]
    counts = [max((n for at, n in decided if at == rung.rung), default=rung.reached) for rung in rungs]
    assert [rung.reached for rung in rungs] == counts
    assert all(len(rung.scores) == rung.reached for rung in rungs) and not any(r.waiting for r in record.stats.rungs)


@pytest.mark.parametrize("scheduler", ["asha", "asha-promotion"])
def test_the_rungs_move_to_the_length_of_the_first_trial(one_ray, tmp_path, monkeypatch, scheduler):
    workers(monkeypatch, Ending)
    record, learned = searched(tmp_path / "e", scheduler=scheduler, num_samples=12, **UNKNOWN)
    assert [(event["trial"], event["epochs"], event["rungs"]) for event in learned] == [("00000", 10, [1, 2, 4, 8])]
    assert "after 10 epochs; they are compared after epochs 1, 2, 4, 8" in learned[0]["reason"]
    assert record.stats.counts["pruned"] >= 4
    check_rungs(record)
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


@pytest.mark.parametrize(("scheduler", "factor"), [("asha", 2.5), ("asha-promotion", 2.0), ("asha-promotion", 2.5)])
def test_a_rung_has_the_trials_that_passed_it_or_waited_before_it_was_placed(
    one_ray, tmp_path, monkeypatch, scheduler, factor
):
    workers(monkeypatch, Ending)
    choices = {"scheduler": scheduler, "num_samples": 12, "reduction_factor": factor, **UNKNOWN, "grace_period": 3}
    record, learned = searched(tmp_path / "e", **choices)
    assert learned and any(d.rung == 3 for trial in record.trials for d in trial.decisions)  # at a rung that moved
    check_rungs(record)
    events = read(tmp_path / "e" / "journal.jsonl")
    for end in range(events.index(learned[0]) + 1, len(events)):
        found = folding(events[:end])
        part = replace(record, trials=tuple(found.records())).stats
        paused = [trial for trial in part.trials if trial.status == "paused" and trial.decisions[-1].action == "pause"]
        waiting = {rung.rung: rung.waiting for rung in part.rungs if rung.waiting}
        assert sum(waiting.values()) == len(paused), end  # the others wait for a worker
        assert waiting.keys() <= set(milestones(10, 1, factor)), end


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
    check_rungs(record)
    assert len(lengths) > 1 and reproduced(record) == record.stats.counts["pruned"]


def test_trials_that_stop_ends_teach_nothing(one_ray, tmp_path, monkeypatch):
    workers(monkeypatch, Ending)
    _, learned = searched(tmp_path / "e", num_samples=4, stop=(f"training_iteration={3}",), **UNKNOWN)
    assert learned == []


# early epochs


EARLY = {"max_epochs": 50, "grace_period": 2, "auto_grace": True}


def learned_from(at_first, rules, brackets=1, num=NUM_COMPARED):
    """Trains `num` trials to the rung of epoch 2; trial n has the value `at_first(n)` in epoch 1, and n in epoch 2."""
    own = OwnLength(rules, brackets)
    for trial in range(num):
        own.judge(trial, 1, float(at_first(trial)))
        own.judge(trial, 2, float(trial))
    return own


@pytest.mark.parametrize("scheduler", ["asha", "asha-promotion"])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_first_rung_moves_to_an_early_epoch_that_orders_the_trials_as_the_grace_period_does(scheduler, mode):
    rules = Experiment(scheduler=scheduler, mode=mode, **EARLY)
    own = learned_from(lambda n: n ^ 1, rules)  # 8 of 120 pairs are swapped
    assert own.in_force == at_length(rules, 0, 1) == replace(rules, grace_period=1, auto_grace=False)
    judged, _ = own.judge(99, 1, 99.0 if mode == "min" else -99.0)
    assert judged.rung == 1 and judged.action in ("stop", "pause") and judged.recorded == NUM_COMPARED
    assert own.judge(100, 1, -99.0 if mode == "min" else 99.0)[0].action == "continue"
    assert learned_from(lambda n: n ^ 1, rules, num=NUM_COMPARED - 1).in_force == rules


def test_the_first_rung_stays_if_early_epochs_mislead_or_a_user_gave_the_grace_period():
    rules = Experiment(scheduler="asha-promotion", **EARLY)
    for misleads in (lambda n: -n, lambda n: 0, lambda n: n * 7 % 16):
        assert learned_from(misleads, rules, num=40).in_force == rules
    fixed = replace(rules, auto_grace=False)
    assert learned_from(float, fixed, num=40).in_force == fixed
    bracketed = replace(rules, brackets=2)
    assert learned_from(float, bracketed, 2, num=40).in_force == bracketed


def test_the_agreement_counts_ordered_pairs():
    assert agreement([1, 2, 3], [1, 2, 3]) == 1 and agreement([3, 2, 1], [1, 2, 3]) == 0
    assert agreement([1, 1, 1], [1, 2, 3]) == 0.5 and agreement([1, 2, 3], [1, 1, 1]) == 0
    assert agreement([1, 3, 2], [1, 2, 3]) == pytest.approx(2 / 3)


@pytest.mark.parametrize("scheduler", ["asha", "asha-promotion"])
def test_a_search_says_that_its_first_rung_has_moved_and_goes_on_with_it(one_ray, tmp_path, monkeypatch, scheduler):
    workers(monkeypatch, Steady)
    monkeypatch.setattr(*KEPT)
    choices = {"scheduler": scheduler, "num_samples": 30, **EARLY}
    record, _ = searched(tmp_path / "e", **choices)
    events = read(tmp_path / "e" / "journal.jsonl")
    (learned,) = (event for event in events if event["event"] == "grace_learned")
    assert (learned["grace_period"], learned["rungs"]) == (1, [1, 2, 4, 8, 16, 32]) and record.grace == 1
    assert "epoch 1 orders the first 16 trials nearly as epoch 2 does" in learned["reason"]
    assert verdict_of(record).about("rule").startswith("Epoch 1 orders the first 16 trials nearly as epoch 2 does")
    assert [line["x0"] for line in draw_curves(record)["layout"]["shapes"]] == [1, 2, 4, 8, 16, 32]
    check_rungs(record)
    assert reproduced(record) == sum(rung.stopped for rung in record.stats.rungs) > 0
    assert what_if(record, scheduler, 1, 2).same
    assert not what_if(record, scheduler, 2, 2).same  # a replay with a given grace period keeps it
    place = events.index(learned)
    for at in (place - 3, place, place + 1, place + 9):
        assert outcome_of(resumed(tmp_path / "e", at, **choices)) == outcome_of(tmp_path / "e"), at


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
