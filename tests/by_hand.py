"""The scheduler of a search with its journal, driven by hand as Ray's controller drives it."""

import random
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

from journals import Journal, read, typed
from ray.tune.schedulers import TrialScheduler

from tuner.engine.controller.stopper import SearchStopper
from tuner.spec.experiment import Experiment
from tuner.tuning.resume.replay import Replay
from tuner.tuning.scheduler import SearchScheduler

CONTINUE, STOP = TrialScheduler.CONTINUE, TrialScheduler.STOP
CONTROLLER = SimpleNamespace(get_live_trials=lambda: ())


@dataclass(eq=False)
class StandIn:
    """As much of a Ray trial as schedulers look at."""

    trial_id: str
    config: dict = field(default_factory=lambda: {"lr": 0.1})
    last_result: dict = field(default_factory=dict)
    checkpoint: object = None
    status: str = "RUNNING"
    is_saving: bool = False
    storage: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(current_checkpoint_index=-1))

    @property
    def run_metadata(self):
        return self

    def set_status(self, status):
        self.status = status

    def on_checkpoint(self, saved):
        self.checkpoint = saved.checkpoint

    def is_finished(self):
        return self.status in ("TERMINATED", "ERROR")


class Search:
    def __init__(self, path, history=(), **choices):
        self.experiment = Experiment(**choices)
        self.path, self.journal, self.stopper = path, Journal(path), SearchStopper()
        self.scheduler = SearchScheduler(self.experiment, self.journal, self.stopper)
        self.searcher_heard = []
        self.stage = Replay(self, self.scheduler, self.journal, self.experiment, typed(history))
        self.trials = {trial.trial_id: trial for trial in self.stage.run()}

    total_samples = 9  # which a replay asks of `Proposals`, as it does these

    def again(self, trial_id, recorded):
        return StandIn(trial_id, status="PENDING")

    def on_trial_result(self, trial_id, result):
        self.searcher_heard.append((trial_id, result["training_iteration"]))

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.searcher_heard.append((trial_id, "failed" if error else "end"))

    def report(self, trial_id, epoch, /, **metrics):
        trial = self.trials.get(trial_id)
        if trial is None:
            trial = self.trials[trial_id] = StandIn(trial_id)
            self.scheduler.on_trial_add(None, trial)
        result = {"training_iteration": epoch, **metrics}
        action = self.scheduler.on_trial_result(CONTROLLER, trial, result)
        trial.last_result = result
        if action == STOP:
            self.scheduler.on_trial_complete(None, trial, result)
        return action

    def ends(self):
        """Trial -> the status and the reason of its end."""
        ended = (event for event in read(self.path) if event["event"] == "trial_ended")
        return {event["trial"]: (event["status"], event["reason"]) for event in ended}

    def decisions(self):
        return [event for event in read(self.path) if event["event"] == "decision"]


def reports(seed):
    """The reports of 14 trials in a random order, each trial's own in order: (trial, epoch, loss)."""
    chance, epochs = random.Random(seed), Counter()
    for trial in chance.sample([f"{i:05d}" for i in range(14)] * 8, 14 * 8):
        epochs[trial] += 1
        yield trial, epochs[trial], round(chance.uniform(-3, 3), 1)  # rounded, so that equal values occur


class Halving(Search):
    """A search by HyperBand with three trials in its first bracket, five in its second, which ends at epoch 6."""

    def __init__(self, path, **choices):
        super().__init__(path, **{"scheduler": "hyperband", "max_epochs": 8, "reduction_factor": 3} | choices)
        for number in range(8):
            trial = self.stage.trials[f"{number:05d}"] = StandIn(f"{number:05d}", status="PENDING")
            self.scheduler.on_trial_add(self.stage, trial)

    def report(self, number, epoch, /, **metrics):
        trial = self.stage.trials[f"{number:05d}"]
        trial.status = "RUNNING"
        result = {"training_iteration": epoch, "checkpoint_dir_name": "checkpoint_000000", **metrics}
        action = self.scheduler.on_trial_result(self.stage, trial, result)
        trial.last_result = result
        if action == STOP:
            self.stage.stop_trial(trial)
        elif action == TrialScheduler.PAUSE:
            trial.status = "PAUSED"
        return action

    def halve(self, sign=1):
        """Reports epoch 2 of the second bracket's trials; returns all decisions."""
        for number, loss in zip(range(3, 8), (0.5, 0.1, 0.4, 0.2, 0.3), strict=True):
            self.report(number, 2, loss=sign * loss)
        names = ("action", "rung", "bracket", "cutoff", "recorded", "reason")
        return [(int(d["trial"]), *(d[name] for name in names)) for d in self.decisions()]
