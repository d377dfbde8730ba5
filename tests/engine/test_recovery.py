"""What Ray's own controller does when a worker dies or waits, with workers that train nothing (`workerless.py`)."""

import time

import pytest
from journals import folding, read
from ray.exceptions import RayActorError
from workerless import Worker, Workerless, run

from tuner.engine.controller.trials import SearchTrial
from tuner.record.report_keys import WAITS
from tuner.spec.constraints import aim_of

WAIT_S, MOST_WAITS = 0.02, 500  # a trial that is never ended for its silence trains after 10 s, and the test fails


@pytest.fixture
def whole(one_ray, tmp_path, monkeypatch):
    """`whole(worker, ...)` runs a search with workers of that class; gives its trials' records and its events."""

    def search(worker, name="x", **choices):
        monkeypatch.setattr("ray.tune.execution.tune_controller.RayActorManager", Workerless)
        monkeypatch.setattr(Workerless, "worker", worker)
        run(tmp_path / name, **choices)
        events = read(tmp_path / name / "journal.jsonl")
        return folding(events).records(), events

    return search


def dying(trial, epoch):
    """Workers of which the one that saves this epoch of this trial dies, once."""

    class Dying(Worker):
        alive = True

        def save(self):
            if Dying.alive and (self.trial, self.epoch) == (trial, epoch):
                Dying.alive = False
                raise RayActorError(error_msg="killed")
            return super().save()

    return Dying


@pytest.mark.parametrize(
    ("scheduler", "action", "reason"),
    [
        ("asha", "continue", ""),
        ("asha", "stop", "trained its 4 epochs"),
        ("asha", "stop", "is worse than the cutoff"),
        ("bohb", "pause", ""),
    ],
)
def test_a_worker_that_dies_after_its_report_was_judged_takes_nothing_with_it(whole, scheduler, action, reason):
    searcher = "bohb" if scheduler == "bohb" else "random"
    choices = {"searcher": searcher, "scheduler": scheduler, "num_samples": 8, "max_epochs": 4}
    expected, before = whole(Worker, "unbroken", **choices)
    decisions = [event for event in before if event["event"] == "decision"]
    judged = next(event for event in decisions if event["action"] == action and reason in event["reason"])
    trial, epoch = judged["trial"], judged["epoch"]
    worker = dying(trial, epoch)
    trials, events = whole(worker, **choices)
    assert not worker.alive
    ends = [[(each.id, each.status, each.reason, each.best(aim_of("loss", "min", ())).metrics) for each in search]
            for search in (trials, expected)]  # fmt: skip
    assert ends[0] == ends[1]
    reported = [(event["trial"], event["epoch"]) for event in events if event["event"] == "report"]
    assert len(reported) == len(set(reported))
    failed = [(event["trial"], event["from_epoch"]) for event in events if event["event"] == "trial_failed"]
    assert failed == ([(trial, epoch)] if action == "continue" else [])  # the others need no worker any more


class Doomed(Worker):
    """Trial 00000 kills its worker in its third epoch."""

    def train(self):
        if self.trial == "00000" and self.epoch == 2:
            raise RayActorError(error_msg="killed")
        return super().train()


def test_a_trial_that_is_resumed_keeps_its_count(whole, tmp_path):
    """The driver dies after the first of three retries; the next one has two left."""
    choices = {"scheduler": "fifo", "num_samples": 2, "max_epochs": 4, "max_failures": 3}
    trials, events = whole(Doomed, **choices)
    retried = [event["will_retry"] for event in events if event["event"] == "trial_failed"]
    assert retried == [True, True, True, False]
    journal = tmp_path / "x" / "journal.jsonl"
    first = next(number for number, event in enumerate(events, 1) if event["event"] == "trial_failed")
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:first]))
    again, events = whole(Doomed, **choices)
    assert [event["will_retry"] for event in events if event["event"] == "trial_failed"] == retried
    for trial, *_ in (trials, again):
        assert (trial.status, len(trial.reports)) == ("failed", 2)
        assert trial.reason.endswith("(tried again 3 times before)")
    assert again[1].status == "completed"


def test_a_trial_that_failed_for_good_is_not_begun_again_by_resume(whole):
    choices = {"scheduler": "fifo", "num_samples": 1, "max_epochs": 4}
    for max_failures in (0, 5):
        (trial,), events = whole(Doomed, **choices, max_failures=max_failures)
        assert [event["will_retry"] for event in events if event["event"] == "trial_failed"] == [False]
        assert (trial.status, len(trial.reports)) == ("failed", 2)


class Waiting(Worker):
    """Trial 00000 finds no room for its second checkpoint."""

    waits = 0

    def train(self):
        if self.trial == "00000" and self.epoch == 1 and Waiting.waits < self.most_waits:
            Waiting.waits += 1
            time.sleep(WAIT_S)
            return {WAITS: "a checkpoint cannot be saved (full)"}
        return super().train()


@pytest.mark.parametrize("room", [True, False])
def test_a_trial_that_waits_for_its_checkpoint_is_silent(whole, monkeypatch, capsys, room):
    monkeypatch.setattr(Waiting, "waits", 0)
    monkeypatch.setattr(Waiting, "most_waits", 3 if room else MOST_WAITS, raising=False)
    limit = "1h" if room else "0.5s"
    trials, _ = whole(Waiting, num_samples=2, max_epochs=2, scheduler="fifo", trial_timeout=limit)
    assert "a checkpoint cannot be saved (full); the search waits" in capsys.readouterr().err
    assert trials[1].status == "completed"
    assert [report.epoch for report in trials[0].reports] == ([1, 2] if room else [1])
    if not room:
        reason = trials[0].reason
        assert reason.endswith("s after epoch 1 (--trial-timeout 0.5s); a checkpoint cannot be saved (full)")
        assert Waiting.waits < MOST_WAITS


def test_ray_takes_trials_from_its_sets_by_their_numbers_not_by_their_place_in_memory():
    trials = [SearchTrial.__new__(SearchTrial) for _ in range(3)]
    for number, trial in enumerate(trials):
        trial.trial_id = f"{number:05d}"
    assert [set(trials).pop(), list(set(trials))] == [trials[0], trials]
