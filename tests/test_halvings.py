"""HyperBand's and BOHB's decisions in the journal, compared with Ray's own halvings over many searches."""

import math
import random

import pytest
from ray.exceptions import RayTaskError
from ray.tune.schedulers import hyperband
from tiers import further
from workerless import Worker, Workerless, run

from tuner.record.reading import read
from tuner.record.results import load
from tuner.record.saved_experiment import save_experiment
from tuner.spec.experiment import Experiment
from tuner.tuning.proposals import Proposals
from tuner.views.whatif import reproduced, what_if


class Halvings:
    """What Ray compared and stopped: noted around Ray's own methods, whatever class our scheduler has."""

    def __init__(self, monkeypatch):
        self.scheduler, self.noted = None, []
        halved, begin = hyperband._Bracket.successive_halving, hyperband.HyperBandScheduler.__init__

        def halve(bracket, metric, sign):
            rung, live = bracket._cumul_r, {t.trial_id: r[metric] for t, r in bracket._live_trials.items()}
            good, bad = halved(bracket, metric, sign)
            self.noted.append((bracket, rung, live, [t.trial_id for t in good], [t.trial_id for t in bad]))
            return good, bad

        def begun(scheduler, *args, **options):
            self.scheduler = scheduler
            begin(scheduler, *args, **options)

        monkeypatch.setattr(hyperband._Bracket, "successive_halving", halve)
        monkeypatch.setattr(hyperband.HyperBandScheduler, "__init__", begun)

        ended = Proposals.on_trial_complete
        self.without_result = set()  # trials whose end the searcher got without a result, as Ray ends a paused trial

        def end(proposals, trial_id, result=None, error=False):
            if result is None and not error:
                self.without_result.add(trial_id)
            ended(proposals, trial_id, result, error)

        monkeypatch.setattr(Proposals, "on_trial_complete", end)

    def place_of(self, bracket):
        """The numbers of a bracket's band, and of the bracket in it, as Ray's lists have them."""
        for band, brackets in enumerate(self.scheduler._hyperbands):
            if bracket in brackets:
                return band, brackets.index(bracket)
        raise AssertionError("no such bracket")

    def stops(self):
        """Trial -> band, bracket, rung, value, cutoff and number of others, of each trial that a halving stopped."""
        return {
            trial: (*self.place_of(bracket), rung, live[trial], live[good[0]], len(live) - 1)
            for bracket, rung, live, good, bad in self.noted
            for trial in bad
        }

    def promotions(self):
        """Trial, rung, value, cutoff and number of others of each trial that a halving kept."""
        return sorted(
            (trial, rung, live[trial], live[good[0]], len(live) - 1)
            for _, rung, live, good, _ in self.noted
            for trial in good
        )


def failing(chance, train):
    """The method `train` of a worker, except that about one epoch in forty fails, as by an error of the user's code."""

    def trained(worker):
        if chance.random() < 1 / 40:
            raise RayTaskError("train", "a traceback", ValueError("fails")).as_instanceof_cause()
        return train(worker)

    return trained


def test_the_last_live_trial_of_a_bracket_may_diverge(one_ray, tmp_path, monkeypatch):
    monkeypatch.setattr("ray.tune.execution.tune_controller.RayActorManager", Workerless)
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


# The searches of 0, 32 and 55 once waited for ever, or were replayed wrongly.
@pytest.mark.parametrize("seed", [0, 1, 32, 55, *further(range(60, 90))])
@pytest.mark.parametrize("scheduler", ["hyperband", "bohb"])
def test_the_journal_has_rays_halvings(one_ray, tmp_path, monkeypatch, scheduler, seed):
    monkeypatch.setattr("ray.tune.execution.tune_controller.RayActorManager", Workerless)
    chance, truth = random.Random(seed), Halvings(monkeypatch)
    monkeypatch.setattr(Workerless, "num_cpus", concurrent := chance.randint(3, 16))
    rules = {"max_epochs": chance.choice([4, 8, 9]), "reduction_factor": chance.choice([2, 3])}
    if seed % 2:
        monkeypatch.setattr(Worker, "train", failing(chance, Worker.train))
    searcher, num_samples = "bohb" if scheduler == "bohb" else "random", chance.randint(8, 30)
    choices = {"seed": seed, "scheduler": scheduler, "searcher": searcher, "num_samples": num_samples, **rules}
    run(tmp_path / "one", concurrent=concurrent, **choices)
    decisions = [event for event in read(tmp_path / "one" / "journal.jsonl") if event["event"] == "decision"]
    stops = {d["trial"]: d for d in decisions if d["action"] == "stop" and d["cutoff"] is not None}
    names = ("band", "bracket", "rung", "value", "cutoff", "recorded")
    assert {trial: tuple(d[name] for name in names) for trial, d in stops.items()} == truth.stops()
    kept = [d for d in decisions if d["action"] == "continue" and d["cutoff"] is not None]
    columns = ("trial", "rung", "value", "cutoff", "recorded")
    assert sorted(tuple(d[name] for name in columns) for d in kept) == truth.promotions()
    # A search must not depend on whether a trial had saved its checkpoint when it was stopped: a replay cannot know it.
    paused = {(d["trial"], d["epoch"]) for d in decisions if d["action"] == "pause"}
    stopped = {d["trial"] for d in decisions if d["action"] == "stop" and (d["trial"], d["epoch"]) in paused}
    assert stopped == truth.without_result
    for d in decisions:
        bracket = truth.scheduler._trial_info[next(t for t in truth.scheduler._trial_info if t.trial_id == d["trial"])]
        if d["rung"] is not None:
            assert (d["band"], d["bracket"]) == truth.place_of(bracket[0])
    if scheduler == "hyperband":
        save_experiment(Experiment(space="tiny.py", results=str(tmp_path), name="one", **choices), tmp_path / "one", {})
        record = load(tmp_path / "one")
        assert reproduced(record) == sum(trial.status == "pruned" and bool(trial.decisions) for trial in record.trials)
