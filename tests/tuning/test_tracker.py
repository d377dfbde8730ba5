"""What a search knows of its trials while it runs: statuses, the best value of all sessions, and failures."""

import pytest
from following import following, heard

from tuner.core.events import DIVERGED
from tuner.spec.experiment import Experiment

BUG = "KeyError: 'lr' (/home/me/space.py, line 12)"


BEGUN = {"event": "experiment_started"}


def report(trial, epoch, loss, checkpoint=None):
    return {"event": "report", "trial": trial, "epoch": epoch, "metrics": {"loss": loss}, "checkpoint": checkpoint}


def failed(trial, error=BUG, kind="user"):
    return [
        {"event": "trial_failed", "trial": trial, "error": error, "kind": kind, "will_retry": False},
        {"event": "trial_ended", "trial": trial, "status": "failed", "reason": error},
    ]


def ended(trial, status="completed", reason=""):
    return [{"event": "trial_ended", "trial": trial, "status": status, "reason": reason}]


def tracked(*events, history=(), **options):
    tracker = following(Experiment(**options), history)
    heard(tracker, *events)
    return tracker


def test_the_best_value_is_that_of_all_sessions():
    history = [BEGUN, report("00000", 1, 0.2), report("00001", 1, 0.5)]
    assert tracked(report("00002", 1, 0.4), history=history).state.best() == (0.2, "00000")
    assert tracked(report("00002", 1, 0.7), history=history, mode="max").state.best() == (0.7, "00002")
    assert tracked(report("00002", 1, float("nan"))).state.best() is None


def test_the_best_value_is_no_single_training_of_confirm():
    again = {"event": "trial_suggested", "trial": "00001", "confirms": "00000", "seed": 5}
    assert tracked(report("00000", 1, 0.5), again, report("00001", 1, 0.1)).state.best() == (0.5, "00000")


def test_the_best_value_is_one_that_the_answer_can_have():
    tracker = tracked(report("00000", 1, 0.1), report("00001", 1, 0.5, "ray/00001/checkpoint_000000"))
    assert tracker.state.best() == (0.5, "00001")  # tuner.record: reports with a checkpoint take precedence


def test_the_best_value_is_of_a_trial_that_keeps_the_constraints_and_a_name_that_nobody_reports_is_said():
    tracker, texts = following(Experiment(constraint=("size <= 10", "sise <= 10"))), []
    tracker.on_notice = texts.append
    for trial, loss, size in (("00000", 0.1, None), ("00001", 0.5, 9), ("00002", 0.2, 12)):
        for epoch in (1, 2):
            metrics = {"loss": loss, **({"size": size, "sise": size} if epoch == 1 and size else {})}
            heard(tracker, report(trial, epoch, loss) | {"metrics": metrics})
        heard(tracker, *ended(trial))
    assert tracker.state.best() == (0.5, "00001")
    assert [text.partition(",")[0] for text in texts] == [
        "trial 00000 completed without a finite 'sise'", "trial 00000 completed without a finite 'size'"
    ]  # fmt: skip


def test_a_metric_of_a_constraint_may_come_only_at_the_end():
    last = report("00000", 3, 0.4) | {"metrics": {"loss": 0.4, "size": 9}}
    tracker = tracked(report("00000", 1, 0.5), report("00000", 2, 0.3), constraint=("size <= 10",))
    assert tracker.state.best() is None
    heard(tracker, last)
    assert tracker.state.best() == (0.3, "00000")


def test_a_trial_diverges_with_any_of_its_metrics():
    tracker = tracked(
        report("00000", 1, 0.5) | {"metrics": {"loss": 0.5, "size": float("nan")}},
        *ended("00000", "pruned", f"size is nan at epoch 1: {DIVERGED}"),
        metric=("loss", "size"), mode=("min", "min"),
    )  # fmt: skip
    assert tracker.state.trials["00000"].shown_status == "diverged"


FIRST = [report(trial, 1, 0.5) for trial in ("00000", "00001", "00002", "00003")]


@pytest.mark.parametrize(
    ("events", "hopeless"),
    [
        ([*FIRST, *failed("00000"), *failed("00001"), *failed("00002")], True),
        ([*failed("00000"), *failed("00001")], False),
        ([e for trial in ("00000", "00001", "00002") for e in ended(trial, "failed", BUG)], True),  # no metric
        ([*FIRST, *failed("00000"), *failed("00001"), *ended("00003", "pruned"), *failed("00002")], True),
        ([*ended("00003"), *failed("00000"), *failed("00001"), *failed("00002")], False),
        ([*failed("00000"), *failed("00001"), *failed("00002", BUG.replace("12", "13"))], False),
        ([*failed("00000"), *failed("00001"), *failed("00002", kind="oom")], False),
        ([report("00003", 1, 0.5), *failed("00000"), *failed("00001"), *failed("00002")], False),  # it got further
    ],
)
def test_a_search_is_hopeless_if_its_first_three_trials_fail_alike(events, hopeless):
    reason = tracked(*events).hopeless()
    assert bool(reason) == hopeless and (BUG in reason or not hopeless)


def test_each_session_may_fail_three_times():
    history = [BEGUN, *failed("00000"), *failed("00001"), *failed("00002")]
    assert not tracked(*failed("00003"), *failed("00004"), history=history).hopeless()
    assert tracked(*failed("00003"), *failed("00004"), *failed("00005"), history=history).hopeless()


def told(*events, history=()):
    """What a search with these events says at once; `history` are those of earlier sessions."""
    tracker, texts = following(Experiment(), history), []
    tracker.on_notice = texts.append
    for event in events:
        heard(tracker, event)
    return texts


def trial(number, *losses, status="pruned"):
    reports = [report(f"{number:05d}", epoch, loss) for epoch, loss in enumerate(losses, 1)]
    return [*reports, *(failed(f"{number:05d}") if status == "failed" else ended(f"{number:05d}", status))]


def test_a_search_whose_first_trials_all_diverge_says_so_once():
    nan = float("nan")
    eight = [event for number in range(8) for event in trial(number, *[0.5] * (number % 2), nan)]
    (text,) = told(*eight, *trial(8, nan), *trial(9, nan))
    assert text.startswith("the first 8 trials all diverged: their loss became NaN") and "look for NaN" in text
    assert told(*eight[:-1]) == []  # seven have ended
    assert told(*trial(8, 0.5), *eight) == []  # one has not diverged
    assert told(*trial(8, status="failed"), *eight) == [text]  # a failed trial says nothing of the values
    again = [event for number in range(8, 16) for event in trial(number, nan)]
    assert told(BEGUN, *again, history=[BEGUN, *eight]) == []  # an earlier session has said it


def test_a_search_whose_first_trials_all_report_one_value_says_so():
    same = [event for number in range(8) for event in trial(number, 0.25, 0.25, status="completed")]
    (text,) = told(*same, *trial(8, 0.25))
    assert text.startswith("the first 8 trials reported the same loss, 0.25, in every epoch")
    assert told(*trial(8, 0.25, 0.2), *same) == []
    assert told(*trial(8, 0.25, float("nan")), *same) == []
