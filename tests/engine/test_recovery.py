"""What Ray's own controller does when a worker dies, with workers that train nothing (`workerless.py`)."""

import pytest
from ray.exceptions import RayActorError
from workerless import Worker, Workerless, run

from tuner.journal import read
from tuner.records import records_of


@pytest.fixture
def whole(one_ray, tmp_path, monkeypatch):
    """`whole(worker, ...)` runs a search with workers of that class; gives its trials' records and its events."""

    def search(worker, name="x", **choices):
        monkeypatch.setattr("ray.tune.execution.tune_controller.RayActorManager", Workerless)
        monkeypatch.setattr(Workerless, "worker", worker)
        run(tmp_path / name, **choices)
        events = read(tmp_path / name / "journal.jsonl")
        return records_of(events), events

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
    ends = [[(each.id, each.status, each.reason, each.best("loss", "min").metrics) for each in search]
            for search in (trials, expected)]  # fmt: skip
    assert ends[0] == ends[1]
    reported = [(event["trial"], event["epoch"]) for event in events if event["event"] == "report"]
    assert len(reported) == len(set(reported))
    failed = [(event["trial"], event["from_epoch"]) for event in events if event["event"] == "trial_failed"]
    assert failed == ([(trial, epoch)] if action == "continue" else [])  # the others need no worker any more
