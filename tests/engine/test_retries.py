"""What is tried again and how often; and that a trial that was has every epoch once."""

from pathlib import Path

import pytest
import ray.exceptions
from tiers import further
from workerless import in_this_process

from tuner.engine.controller import retries
from tuner.engine.controller.failures import as_a_worker_or_task_error
from tuner.engine.controller.retries import Retries

LOST = ray.exceptions.RayActorError(error_msg="killed")
POISONED = RuntimeError("CUDA error: an illegal memory access was encountered")


def decisions(retries, *errors):
    return [retries.judge("00001", error, 0).will_retry for error in errors]


def test_a_lost_worker_is_tried_again_so_often_and_a_poisoned_one_once_each_by_its_own_count():
    retries = Retries(2)
    assert decisions(retries, LOST, POISONED, LOST, POISONED, LOST) == [True, True, True, False, False]
    assert retries.judge("00002", LOST, 0).will_retry  # each trial has its own count
    assert decisions(Retries(0), LOST) == [False]


@pytest.mark.parametrize("error", [ValueError("x"), MemoryError("x"), RuntimeError("CUDA out of memory")])
def test_what_would_fail_again_is_not_tried_again(error):
    assert decisions(Retries(9), error) == [False]


def test_retries_of_earlier_sessions_count():
    history = [
        {"event": "trial_failed", "trial": "00001", "kind": "worker_lost", "will_retry": True},
        {"event": "trial_failed", "trial": "00002", "kind": "worker_lost", "will_retry": False},
    ]
    retries = Retries(2, history)
    assert retries.judge("00001", LOST, 4).from_epoch == 4
    last = retries.judge("00001", LOST, 4)
    assert last.error == "its worker died: killed (tried again 2 times before)" and last.from_epoch == 0


def test_a_worker_lost_inside_a_trial_is_the_trials():
    inner = ray.exceptions.RayTaskError("epoch", "", LOST)
    for error in (inner, ray.exceptions.RayTaskError("train", "", inner)):
        assert Retries(1).judge("00001", error, 0).kind == "worker_lost"


@pytest.fixture
def lossy(search, tmp_path):
    def run(*troubles, saves=True, options=()):
        marks = tmp_path / "marks"
        marks.mkdir(exist_ok=True)
        space = tmp_path / "lossy.py"
        choice = f"space = space_of({list(troubles)}, {str(marks)!r}, {saves})\n"
        space.write_text((Path(__file__).parents[1] / "spaces" / "lossy.py").read_text() + choice)
        ran = search(str(space), *options)
        ran.trained = lambda epoch, trial="00000": len(list(marks.glob(f"{trial}-{epoch}-*")))
        ran.failed = [event for event in ran.events if event["event"] == "trial_failed"]
        return ran

    return run


def epochs(ran, trial="00000"):
    return [event["epoch"] for event in ran.events if event["event"] == "report" and event["trial"] == trial]


# By default, `test_recovery.py` has bohb, which pauses as hyperband does, without workers.
@pytest.mark.parametrize("scheduler", ["asha", *further(["hyperband"])])
def test_a_lost_worker_costs_an_epoch_at_most(lossy, scheduler):
    options = ["--scheduler", scheduler, "--max-concurrent-trials", "1"]
    ran = lossy("killed once", "none", options=options)
    assert ran.code == 0 and ran.trials["00000"].status == "completed"
    assert epochs(ran) == [1, 2, 3, 4, 5] and [ran.trained(epoch) for epoch in (1, 2, 3, 4, 5)] == [1, 1, 2, 1, 1]
    (failed,) = ran.failed
    assert (failed["kind"], failed["will_retry"], failed["from_epoch"]) == ("worker_lost", True, 2)
    rungs = [(d["trial"], d["rung"]) for d in ran.events if d["event"] == "decision" and d["rung"]]
    assert len(rungs) == len(set(rungs))


def test_a_function_without_checkpoints_begins_anew_and_reports_no_epoch_twice(lossy):
    with in_this_process():
        ran = lossy("lost once", saves=False)
    assert ran.trials["00000"].status == "completed" and ran.failed[0]["from_epoch"] == 0
    assert epochs(ran) == [1, 2, 3, 4, 5] and [ran.trained(epoch) for epoch in (1, 2, 3, 4, 5)] == [2, 2, 2, 1, 1]


def test_a_poisoned_worker_is_replaced(lossy):
    ran = lossy("poisoned once")
    (failed,) = ran.failed
    assert (failed["kind"], failed["will_retry"]) == ("cuda", True)
    assert "usually a label or an index out of range" in failed["error"]
    (trial,) = ran.record.trials
    processes = [report.metrics["process"] for report in trial.reports]
    assert trial.status == "completed" and ran.trained(3) == 2
    assert len(set(processes[:2])) == len(set(processes[2:])) == 1 and processes[1] != processes[2]


def test_what_a_trial_does_itself_is_not_tried_again(lossy):
    ends = {"a bug": "failed", "exits": "failed", "exits well": "completed"}
    with in_this_process():
        ran = lossy(*ends, options=["--scheduler", "fifo"])
    by_trouble = {trial.config["trouble"]: trial for trial in ran.record.trials}
    assert {name: trial.status for name, trial in by_trouble.items()} == ends
    assert 'KeyError: "a bug of the user\'s"' in by_trouble["a bug"].reason
    assert "sys.exit(3)" in by_trouble["exits"].reason
    assert {(failed["kind"], failed["will_retry"]) for failed in ran.failed} == {("user", False)}
    assert all(len(trial.reports) == 2 for trial in by_trouble.values())


def test_a_trial_that_hangs_is_not_tried_again(lossy):
    ran = lossy("hangs", options=["--trial-timeout", "3s"])
    (hung,) = ran.record.trials
    assert hung.status == "failed" and len(hung.reports) == 2
    assert "no report for 3." in hung.reason and "--trial-timeout 3s" in hung.reason
    assert [(failed["kind"], failed["will_retry"]) for failed in ran.failed] == [("user", False)]


def test_a_dead_worker_is_told_with_its_probable_cause(monkeypatch):
    message = (
        "The actor died unexpectedly before finishing this task.\n\tactor_id: 1f\nThe actor is dead because its worker "
    )
    message += "process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a "
    message += (
        "connection error code 2. End of file. Some common causes include: (1) the process was killed by the OOM killer"
    )
    text = Retries(0).judge("00001", ray.exceptions.RayActorError(error_msg=message), 0).error
    assert text.startswith(
        "its worker was killed, or its native code crashed; `dmesg` says if memory ran out: then use"
    )
    for num, words in ((4, "by a signal, or its native code crashed (SIGSEGV); memory had not"), (5, "by the kernel")):
        kills = iter((4, num))
        monkeypatch.setattr(retries, "oom_kills", lambda kills=kills: next(kills))
        text = Retries(0, here=True).judge("00001", ray.exceptions.RayActorError(error_msg=message), 0).error
        assert text.startswith("its worker was killed") and words in text


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ray.exceptions.OutOfMemoryError("2 workers killed"), "worker_lost"),
        (ray.exceptions.NodeDiedError("gone"), "worker_lost"),
        (ray.exceptions.RaySystemError("No module named x"), "user"),
        (ModuleNotFoundError("x"), "user"),
    ],
)
def test_errors_that_would_end_rays_search_are_one_trials(error, kind):
    known = as_a_worker_or_task_error(error)
    assert isinstance(known, (ray.exceptions.RayActorError, ray.exceptions.RayTaskError))
    failure = Retries(0).judge("00001", known, 0)
    assert failure.kind == kind and str(error) in failure.error
