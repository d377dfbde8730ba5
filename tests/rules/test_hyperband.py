"""HyperBand, and its variant for BOHB: the rule compared with Ray's own on the same reports, and whole searches."""

import math
import random
from collections import defaultdict
from unittest.mock import Mock

import pytest
from journals import read
from ray.tune.schedulers import HyperBandForBOHB, HyperBandScheduler
from tiers import further
from workerless import MANAGER, Worker, Workerless, failing, run

from tuner.core.rules.hyperband import HyperBand
from tuner.record.results import load
from tuner.record.saved_experiment import save_experiment
from tuner.spec.experiment import Experiment
from tuner.tuning.proposals import Proposals
from tuner.views.whatif import reproduced, what_if


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("most", "factor"), [(8, 3), (9, 3), (16, 2), (5, 4)])
@pytest.mark.parametrize("kind", [HyperBandScheduler, HyperBandForBOHB])
def test_the_rule_decides_as_rays_does(seed, most, factor, kind):
    """Each decision is that of Ray, at the same report; with values of which many are equal, and in both modes."""
    chance, num, mode = random.Random(seed), 20, ("min", "max")[seed % 2]
    theirs = kind(time_attr="t", metric="m", mode=mode, max_t=most, reduction_factor=factor)
    pair = dict(searcher="bohb", scheduler="bohb") if kind is HyperBandForBOHB else dict(scheduler="hyperband")
    ours = HyperBand(Experiment(**pair, max_epochs=most, reduction_factor=factor, mode=mode))
    trials = [Mock(trial_id=str(n), is_saving=False, status="RUNNING") for n in range(num)]
    controller = Mock()
    controller.get_trials.return_value = trials

    def stop(trial):
        trial.status = "TERMINATED"
        theirs.on_trial_remove(controller, trial)

    controller.stop_trial.side_effect = stop
    epochs, stopped, halved = [0] * num, set(), 0
    for n, trial in enumerate(trials):
        theirs.on_trial_add(controller, trial)
        ours.added(n)
    while running := [n for n, trial in enumerate(trials) if trial.status == "RUNNING"]:
        n = chance.choice(running)
        epochs[n] += 1
        value = chance.randint(0, 9)
        bracket, band = theirs._trial_info[trials[n]]
        rung_id = bracket._cumul_r, theirs._hyperbands[band].index(bracket), band
        action = theirs.on_trial_result(controller, trials[n], {"t": epochs[n], "m": value})
        judged, others = ours.judge(n, epochs[n], value)
        decided = dict(others) | ({n: judged} if others or judged.action == "stop" else {})
        assert judged.action == action.lower()
        assert (judged.rung, judged.bracket, judged.band) == rung_id or not judged.reason
        if action == "PAUSE":
            trials[n].status = "PAUSED"
        elif action == "STOP":
            stop(trials[n])
        stopped |= {other for other, each in decided.items() if each.action == "stop"}
        for other, each in decided.items():
            assert (trials[other].status == "TERMINATED") == (each.action == "stop")
            trials[other].status = "RUNNING" if each.action == "continue" else "TERMINATED"
        halved += any(each.action == "continue" for each in decided.values())
        assert {other for other in range(num) if trials[other].status == "TERMINATED"} == stopped
    assert halved and stopped


def test_a_bracket_for_bohb_is_halved_when_it_is_full_or_nothing_else_is_left():
    rule = HyperBand(Experiment(searcher="bohb", scheduler="bohb", max_epochs=9, reduction_factor=3))
    for trial in range(4):  # of 9
        rule.added(trial)
        judged, others = rule.judge(trial, 1, float(trial))
        assert judged.action == "pause" and others == []
    assert rule.ended(3, 1, None) == []  # a failure does not end the wait for the other five
    actions = [(trial, each.action, each.cutoff) for trial, each in rule.idle()]
    assert actions == [(2, "continue", 2.0), (1, "continue", 2.0), (0, "continue", 2.0)]
    assert rule.idle() == []


def test_a_bracket_that_has_ended_stops_no_trial_twice():
    """The trial that reported last leaves its bracket when it has ended; until then others may ask the rule."""
    rule = HyperBand(Experiment(scheduler="hyperband", max_epochs=8, reduction_factor=3))
    for trial in range(8):  # 0 to 2 fill the first bracket, 3 to 7 the second
        rule.added(trial)
    for trial in range(3, 8):
        rule.judge(trial, 2, float(trial))
    assert rule.judge(3, 6, 1.0)[0].action == "pause"
    last, others = rule.judge(4, 6, 1.0)
    assert last.action == "stop" and [(trial, each.action) for trial, each in others] == [(3, "stop")]
    assert rule.idle() == [] and rule.ended(5, 2, None) == []


def test_the_last_live_trial_of_a_bracket_may_diverge(one_ray, tmp_path, monkeypatch):
    monkeypatch.setattr(MANAGER, Workerless)
    monkeypatch.setattr(Workerless, "num_cpus", 4)  # so that bracket 0 is filled, and bracket 1 has one trial
    monkeypatch.setattr("workerless.learn", lambda trial, *_: (0, math.nan if trial == "00003" else float(trial)))
    rules = {"scheduler": "hyperband", "reduction_factor": 3, "max_epochs": 9, "num_samples": 10}
    run(tmp_path / "one", concurrent=4, **rules)
    save_experiment(Experiment(space="tiny.py", results=str(tmp_path), name="one", **rules), tmp_path / "one", {})
    record = load(tmp_path / "one")
    assert {trial.id: trial.status for trial in record.trials if trial.status != "completed"} == {
        "00003": "pruned", **{trial.id: "pruned" for trial in record.trials if trial.decisions[-1].rung}
    }  # fmt: skip
    assert record.trials[3].reason == "loss is nan at epoch 1: the training diverged"
    stops = [trial for trial in record.trials if trial.status == "pruned" and trial.decisions[-1].rung]
    assert stops and reproduced(record) == len(stops)
    fates = what_if(record, "hyperband", 1, 3).fates
    assert {fate.trial for fate in fates if fate.outcome == "stopped"} == {trial.id for trial in stops}


# With these seeds hyperband runs 4 or 5 trials at once, and no bracket gets enough of them to stop one by a cutoff.
NOTHING_TO_HALVE = (66, 70, 72, 82)


# The searches of 0, 32 and 55 once waited for ever, or were replayed wrongly.
@pytest.mark.parametrize("seed", [0, 1, 32, 55, *further(range(60, 90))])
@pytest.mark.parametrize("scheduler", ["hyperband", "bohb"])
def test_every_search_ends_and_its_journal_has_the_halvings(one_ray, tmp_path, monkeypatch, scheduler, seed):
    monkeypatch.setattr(MANAGER, Workerless)
    ended, without_result = Proposals.on_trial_complete, set()

    def end(proposals, trial_id, result=None, error=False):
        if result is None and not error:
            without_result.add(trial_id)  # as Ray ends a paused trial
        ended(proposals, trial_id, result, error)

    monkeypatch.setattr(Proposals, "on_trial_complete", end)
    chance = random.Random(seed)
    monkeypatch.setattr(Workerless, "num_cpus", concurrent := chance.randint(3, 16))
    rules = {"max_epochs": chance.choice([4, 8, 9]), "reduction_factor": chance.choice([2, 3])}
    if seed % 2:
        monkeypatch.setattr(Worker, "train", failing(chance, Worker.train))
    searcher, num_samples = "bohb" if scheduler == "bohb" else "random", chance.randint(8, 30)
    choices = {"seed": seed, "scheduler": scheduler, "searcher": searcher, "num_samples": num_samples, **rules}
    run(tmp_path / "one", concurrent=concurrent, **choices)
    events = read(tmp_path / "one" / "journal.jsonl")
    ends = {event["trial"]: event for event in events if event["event"] == "trial_ended"}
    assert len(ends) == num_samples
    decisions = [event for event in events if event["event"] == "decision"]
    halvings = defaultdict(list)  # the decisions of one halving: all have the same cutoff and number of other trials
    for d in decisions:
        if d["cutoff"] is not None:
            halvings[d["band"], d["bracket"], d["rung"], d["cutoff"], d["recorded"]].append(d)
    for (*_, cutoff, recorded), members in halvings.items():
        stopped = [d["value"] for d in members if d["action"] == "stop"]
        kept = [d["value"] for d in members if d["action"] == "continue"]
        assert len(members) == recorded + 1 and max(kept) == cutoff <= min(stopped, default=math.inf)
    halves = any(d["action"] == "stop" for members in halvings.values() for d in members)
    assert halves == (scheduler == "bohb" or seed not in NOTHING_TO_HALVE)
    # A search must not depend on whether a trial had saved its checkpoint when it was stopped: a replay cannot know it.
    paused = {(d["trial"], d["epoch"]) for d in decisions if d["action"] == "pause"}
    stopped = {d["trial"] for d in decisions if d["action"] == "stop" and (d["trial"], d["epoch"]) in paused}
    assert stopped == without_result
    if scheduler == "hyperband":
        save_experiment(Experiment(space="tiny.py", results=str(tmp_path), name="one", **choices), tmp_path / "one", {})
        record = load(tmp_path / "one")
        assert reproduced(record) == sum(trial.status == "pruned" and bool(trial.decisions) for trial in record.trials)
