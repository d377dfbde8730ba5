"""A failure's kind and its one line; what is tried again and how often, and that its trial has every epoch once."""

import json

import pytest
import ray.exceptions
import torch
from killing import troubled
from workerless import in_this_process

from tuner.core.events import TrialFailed
from tuner.engine.controller import failures
from tuner.engine.controller.failures import Retries, as_a_worker_or_task_error, kind_of, likeness
from tuner.errors.users_code import outside_trial

LOST = ray.exceptions.RayActorError(error_msg="killed\nmore")
POISONED = RuntimeError("CUDA error: an illegal memory access was encountered")


def as_ray_says(error):
    trace = f'Traceback (most recent call last):\n  File "x.py", line 3, in train\n{type(error).__name__}: {error}\n'
    return ray.exceptions.RayTaskError("train", trace, error).as_instanceof_cause()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KeyError("lr"), "user"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "oom"),
        (RuntimeError("CUDA out of memory"), "oom"),
        (RuntimeError("CUDA error: unspecified launch failure"), "cuda"),
        (torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB."), "oom"),
        (torch.AcceleratorError("HIP error: an illegal memory access was encountered"), "cuda"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"), "oom"),
        (MemoryError("Unable to allocate 8.00 EiB for an array"), "oom"),
        (ValueError("set CUDA error handling first"), "user"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), "cuda"),
    ],
)
def test_an_error_of_a_trial_is_told_in_one_line(error, kind):
    for shown in (error, as_ray_says(error)):
        actual_kind, text = kind_of(shown)
        assert actual_kind == kind and str(error).strip("'") in text and "\n" not in text
        assert type(error).__name__ in text and "RayTaskError" not in text


def test_a_lost_worker_is_told_also_one_inside_a_trial():
    inner = ray.exceptions.RayTaskError("epoch", "", LOST)
    for error in (LOST, inner, ray.exceptions.RayTaskError("train", "", inner)):
        assert kind_of(error) == ("worker_lost", "its worker died: killed")


@pytest.mark.parametrize(
    ("first", "usual"),
    [
        ("CUDA error: device-side assert triggered", "a label or an index out of range"),
        ("CUDA error: an illegal memory access was encountered", "an index out of range or a tensor of a wrong shape"),
    ],
)
def test_cudas_own_exception_of_several_lines_is_told_by_its_first_with_its_usual_cause(first, usual):
    advice = "CUDA kernel errors might be asynchronously reported at some other API call.\nFor debugging consider ..."
    error = torch.AcceleratorError(f"{first}\n{advice}")
    for shown in (error, as_ray_says(error)):
        kind, text = kind_of(shown)
        place = "" if shown is error else " (x.py, line 3)"
        assert kind == "cuda" and text.startswith(f"AcceleratorError: {first}{place}; usually {usual}")
        assert "\n" not in text


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (["/home/me/space.py", "/usr/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py"], "space.py"),
        (["/home/me/space.py", "/home/me/model.py", json.__file__], "model.py"),
        ([failures.__file__, "<string>"], None),
    ],
)
def test_a_failure_names_file_and_line_of_the_users_code(frames, place):
    error = KeyError("lr")
    lines = [f'  File "{file}", line {number}, in train\n    x = y\n' for number, file in enumerate(frames, 1)]
    trace = f"Traceback (most recent call last):\n{''.join(lines)}KeyError: 'lr'\n"
    shown = ray.exceptions.RayTaskError("train", trace, error)
    where = f" (/home/me/{place}, line {frames.index(f'/home/me/{place}') + 1})" if place else ""
    for each in (shown, shown.as_instanceof_cause(), ray.exceptions.RayTaskError("outer", "Traceback: none", shown)):
        assert kind_of(each) == ("user", f"KeyError: 'lr'{where}")


def test_failures_are_alike_if_type_and_place_are_equal():
    place = "(/home/me/space.py, line 12)"
    assert likeness(f"ValueError: 4x3 (a) {place}") == likeness(f"ValueError: 5x2 {place} (tried again once before)")
    assert likeness(f"ValueError: 4 {place}") != likeness(f"KeyError: 4 {place}")
    assert likeness(f"ValueError: 4 {place}") != likeness("ValueError: 4 (/home/me/space.py, line 13)")
    assert likeness("its worker died: pid 12") == likeness("its worker died: pid 345")
    assert likeness("ValueError: no file a/b1") != likeness("ValueError: no file a/c1")


@pytest.mark.parametrize(
    "text",
    [
        "'/tmp/tuner-trial-{}/tree/home/me/x.csv'", "'/a b/tuner-trial-{}/tree/x'", "sqlite:////tmp/tuner-trial-{}/tree/db",
        "/tmp/tuner-trial-{}", "[Errno 2] '/tmp/tmp{}/x'", "<object at 0x{}>",
    ],
)  # fmt: skip
def test_failures_that_differ_only_by_the_trials_own_folder_are_alike(text):
    """Also without a line of the user's, as where a library's child process fails."""
    one, other = (f"OSError: {text}".replace("{}", each) for each in ("1a2b3c4d", "ffe0beef"))
    assert likeness(one) == likeness(other) and one != other


def test_the_users_path_is_told_also_in_an_address():
    assert outside_trial("file:///tmp/tuner-trial-1a/tree/home/me/x") == "file:///home/me/x"
    assert outside_trial("sqlite:////tmp/tuner-trial-1a/tree/home/me/x") == "sqlite:////home/me/x"


def test_retries_by_kind_of_failure_and_trial():
    """A lost worker is tried again so often, a poisoned one once, and what would fail again never."""
    retries = Retries(2)
    tried = [retries.judge("00001", error, 0).will_retry for error in (LOST, POISONED, LOST, POISONED, LOST)]
    assert tried == [True, True, True, False, False]
    assert retries.judge("00002", LOST, 0).will_retry and not Retries(0).judge("00001", LOST, 0).will_retry
    for error in (ValueError("x"), MemoryError("x"), RuntimeError("CUDA out of memory")):
        assert not Retries(9).judge("00001", error, 0).will_retry


def test_retries_of_earlier_sessions_count():
    history = [
        TrialFailed("lost", "worker_lost", will_retry=True, trial="00001"),
        TrialFailed("lost", "worker_lost", will_retry=False, trial="00002"),
    ]
    retries = Retries(2, history)
    assert retries.judge("00001", LOST, 4).from_epoch == 4
    last = retries.judge("00001", LOST, 4)
    assert last.error == "its worker died: killed (tried again 2 times before)" and last.from_epoch == 0


@pytest.fixture
def lossy(search, tmp_path):
    def run(*troubles, saves=True, options=()):
        ran = search(troubled(tmp_path, troubles, saves), *options)
        begun = (ran.folder / "ray" / "00000" / "begun").read_text().split()
        ran.trained = lambda epoch: begun.count(str(epoch))
        ran.failed = [event for event in ran.events if event["event"] == "trial_failed"]
        return ran

    return run


def epochs(ran, trial="00000"):
    return [event["epoch"] for event in ran.events if event["event"] == "report" and event["trial"] == trial]


def test_a_lost_worker_costs_an_epoch_at_most(lossy):  # by asha; `test_recovery.py` has bohb, without workers
    ran = lossy("killed once", "none", options=["--scheduler", "asha", "--max-concurrent-trials", "1"])
    assert ran.code == 0 and ran.trials["00000"].status == "completed"
    assert epochs(ran) == [1, 2, 3, 4, 5] and [ran.trained(epoch) for epoch in (1, 2, 3, 4, 5)] == [1, 1, 2, 1, 1]
    (failed,) = ran.failed
    assert (failed["kind"], failed["will_retry"], failed["from_epoch"]) == ("worker_lost", True, 2)
    rungs = [(d["trial"], d["rung"]) for d in ran.events if d["event"] == "decision" and d["rung"]]
    assert len(rungs) == len(set(rungs))


@pytest.mark.slow  # takes 10 s
def test_a_poisoned_worker_is_replaced(lossy):
    ran = lossy("poisoned once", "none", options=["--scheduler", "fifo", "--max-concurrent-trials", "1"])
    (failed,) = ran.failed
    assert (failed["kind"], failed["will_retry"]) == ("cuda", True)
    assert "usually a label or an index out of range" in failed["error"]
    trial, other = ran.record.trials
    processes = [report.metrics["process"] for report in trial.reports]
    assert trial.status == other.status == "completed" and ran.trained(3) == 2
    assert len(set(processes[:2])) == len(set(processes[2:])) == 1 and processes[1] != processes[2]
    assert processes[1] not in {report.metrics["process"] for report in other.reports}


# The last search of this room: Ray names a trial's working folder by the second, and the next search would share it.
def test_a_function_without_checkpoints_begins_anew_and_reports_no_epoch_twice(lossy):
    with in_this_process():
        ran = lossy("lost once", saves=False)
    assert ran.trials["00000"].status == "completed" and ran.failed[0]["from_epoch"] == 0
    assert epochs(ran) == [1, 2, 3, 4, 5] and [ran.trained(epoch) for epoch in (1, 2, 3, 4, 5)] == [2, 2, 2, 1, 1]


@pytest.mark.slow  # takes 9 s
def test_what_a_trial_does_itself_is_not_tried_again(lossy):
    ends = {"raises": "failed", "exits": "failed", "exits well": "completed"}
    with in_this_process():
        ran = lossy(*ends, options=["--scheduler", "fifo"])
    by_trouble = {trial.config["trouble"]: trial for trial in ran.record.trials}
    assert {name: trial.status for name, trial in by_trouble.items()} == ends
    assert 'KeyError: "a bug of the user\'s"' in by_trouble["raises"].reason
    assert "sys.exit(3)" in by_trouble["exits"].reason
    assert {(failed["kind"], failed["will_retry"]) for failed in ran.failed} == {("user", False)}
    assert all(len(trial.reports) == 2 for trial in by_trouble.values())


@pytest.mark.slow  # takes 18 s
def test_a_trial_that_hangs_is_not_tried_again(lossy):
    ran = lossy("hangs", options=["--trial-timeout", "3s"])
    (hung,) = ran.record.trials
    assert hung.status == "failed" and len(hung.reports) == 2
    assert "no report for 3." in hung.reason and "--trial-timeout 3s" in hung.reason
    assert [(failed["kind"], failed["will_retry"]) for failed in ran.failed] == [("user", False)]


def test_a_dead_worker_is_told_with_its_probable_cause(monkeypatch):
    lost = ray.exceptions.RayActorError(
        error_msg="The actor died unexpectedly before finishing this task.\n\tactor_id: 1f\nWorker exit type: x "
        "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. Some common causes "
        "include: (1) the process was killed by the OOM killer"
    )
    says = "its worker was killed, or its native code crashed; `dmesg` says if memory ran out: then use"
    assert Retries(0).judge("00001", lost, 0).error.startswith(says)
    for num, words in ((4, "by a signal, or its native code crashed (SIGSEGV); memory had not"), (5, "by the kernel")):
        kills = iter((4, num))
        monkeypatch.setattr(failures, "oom_kills", lambda kills=kills: next(kills))
        text = Retries(0, here=True).judge("00001", lost, 0).error
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
