"""What is tried again and how often; and that a trial that was has every epoch once."""

from pathlib import Path

import pytest
import ray.exceptions

from tuner.journal import read
from tuner.retries import Retries

LOST = ray.exceptions.RayActorError(error_msg="killed")
POISONED = RuntimeError("CUDA error: an illegal memory access was encountered")


def decisions(retries, *errors):
    return [retries.judge("00001", error, 0).will_retry for error in errors]


def test_a_lost_worker_is_tried_again_so_often_and_a_poisoned_one_once_each_by_its_own_count():
    assert decisions(Retries(2), LOST, POISONED, LOST, POISONED, LOST) == [True, True, True, False, False]
    assert decisions(Retries(0), LOST) == [False]


@pytest.mark.parametrize("error", [ValueError("x"), MemoryError("x"), RuntimeError("CUDA out of memory"), None])
def test_what_would_fail_again_is_not_tried_again(error):
    assert decisions(Retries(9), error) == [False]


def test_each_trial_has_its_own_count():
    retries = Retries(1)
    assert retries.judge("00001", LOST, 3).will_retry and retries.judge("00002", LOST, 0).will_retry


def test_retries_of_earlier_sessions_count():
    history = [
        {"event": "trial_failed", "trial": "00001", "kind": "worker_lost", "will_retry": True},
        {"event": "trial_failed", "trial": "00002", "kind": "worker_lost", "will_retry": False},
    ]
    assert decisions(Retries(2, history), LOST, LOST) == [True, False]


def test_the_last_failure_says_how_often_it_was_tried():
    retries = Retries(1)
    assert retries.judge("00001", LOST, 4).from_epoch == 4
    last = retries.judge("00001", LOST, 4)
    assert last.error == "its worker died: killed (tried again once before)" and last.from_epoch == 0


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
        space.write_text((Path(__file__).parent / "spaces" / "lossy.py").read_text() + choice)
        ran = search(str(space), *options)
        ran.trained = lambda epoch, trial="00000": len(list(marks.glob(f"{trial}-{epoch}-*")))
        ran.events = read(ran.folder / "journal.jsonl")
        ran.failed = [event for event in ran.events if event["event"] == "trial_failed"]
        return ran

    return run


def epochs(ran, trial="00000"):
    return [event["epoch"] for event in ran.events if event["event"] == "report" and event["trial"] == trial]


@pytest.mark.parametrize("scheduler", ["asha", "hyperband"])
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
    ran = lossy("killed once", saves=False)
    assert ran.trials["00000"].status == "completed"
    assert epochs(ran) == [1, 2, 3, 4, 5] and [ran.trained(epoch) for epoch in (1, 2, 3, 4, 5)] == [2, 2, 2, 1, 1]
    assert ran.failed[0]["from_epoch"] == 0


def test_a_trial_that_always_loses_its_worker_ends(lossy):
    ran = lossy("killed always", options=["--max-failures", "1"])
    assert [failed["will_retry"] for failed in ran.failed] == [True, False]
    assert ran.trials["00000"].status == "failed" and "(tried again once before)" in ran.trials["00000"].reason
    assert epochs(ran) == [1, 2] and ran.code == 0


def test_a_poisoned_worker_is_replaced_once(lossy):
    ran = lossy("poisoned once", "poisoned always", "none", options=["--max-concurrent-trials", "1"])
    once, always, none = (ran.trials[f"{number:05d}"] for number in range(3))
    assert [trial.status for trial in (once, always, none)] == ["completed", "failed", "completed"]
    assert [(failed["trial"], failed["kind"], failed["will_retry"]) for failed in ran.failed] == [
        ("00000", "cuda", True),
        ("00001", "cuda", True),
        ("00001", "cuda", False),
    ]
    assert all("usually a label or an index out of range" in failed["error"] for failed in ran.failed)
    processes = [[report.metrics["process"] for report in trial.reports] for trial in (once, always, none)]
    before, after = processes[0][:2], processes[0][2:]
    assert len(set(before)) == len(set(after)) == 1 and not set(before) & {*after, *processes[1], *processes[2]}
    assert ran.trained(3, "00001") == 2


def test_what_a_trial_does_itself_is_not_tried_again(lossy):
    ran = lossy("a bug", "exits", "exits well", "hangs", options=["--trial-timeout", "3s", "--scheduler", "fifo"])
    by_trouble = {trial.config["trouble"]: trial for trial in ran.record.trials}
    assert {name: trial.status for name, trial in by_trouble.items()} == {
        "a bug": "failed", "exits": "failed", "exits well": "completed", "hangs": "failed",
    }  # fmt: skip
    assert 'KeyError: "a bug of the user\'s"' in by_trouble["a bug"].reason
    assert "sys.exit(3)" in by_trouble["exits"].reason
    assert "no report for 3." in by_trouble["hangs"].reason and "--trial-timeout 3s" in by_trouble["hangs"].reason
    assert {(failed["kind"], failed["will_retry"]) for failed in ran.failed} == {("user", False)}
    assert all(len(trial.reports) == 2 for trial in by_trouble.values())
