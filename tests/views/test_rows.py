"""Rows of the tables: what pruned trials would survive today, the other metrics of a trial, and its attempts."""

import math
from dataclasses import replace

import pytest
from journals import folding
from test_figures import decided, record, trial

from tuner.views.figures.timeline import cost_of
from tuner.views.tables import rung_rows, trial_rows


@pytest.mark.parametrize(("mode", "sign"), [("min", 1), ("max", -1)])
def test_those_that_would_survive_are_the_pruned_trials_that_reach_the_cutoff_of_today(mode, sign):
    """16 trials at rung 1: the first ones were the best of few, and were pruned when better ones were known."""
    values = [8.0, 7.0, 6.0, 5.0, *(9.0 + n for n in range(12))]
    trials = []
    for n, value in enumerate(values):
        was_pruned = n in (0, 2, 3, 5, 9)
        call = decided(1, sign * value, sign * 5.5, "stop" if was_pruned else "continue", recorded=n)
        trials.append(trial(n, [sign * value, sign * value], "pruned" if was_pruned else "completed", [call]))
    trials.append(trial(16, [math.nan], "pruned", [decided(1, math.nan, None, "stop")._replace(rung=None)]))
    # A trial that ended by itself where a rule would have stopped it was not pruned.
    trials.append(trial(17, [sign * 1.0], "completed", [decided(1, sign * 1.0, sign * 0.5)]))
    whole = record(*trials, mode=mode, reduction_factor=4)
    (row,) = rung_rows(whole)
    # 17 values: the best quarter are 1, 5, 6, 7 and 8, of which the pruned trials 0, 2 and 3 have 8, 6 and 5.
    assert (row.cutoff_now, row.would_pass_now, row.would_survive) == (sign * 8.0, 5, 3)
    (other,) = rung_rows(record(*trials, mode=mode, scheduler="median"))
    assert other.would_pass_now is other.would_survive is None


def test_a_trial_has_its_other_metrics_in_its_best_report_and_at_last():
    one = trial(0, [3.0, 1.0, 2.0])
    accuracies = ({"acc": 0.1, "note": "x"}, {"acc": math.nan}, {"top5": 7, "flag": True})
    reports = [r._replace(metrics=r.metrics | more) for r, more in zip(one.reports, accuracies, strict=True)]
    (row,) = trial_rows(record(replace(one, reports=tuple(reports))))
    assert set(row.metrics) == {"acc", "top5"} and row.metrics["top5"] == [None, 7]
    assert [math.isnan(value) for value in row.metrics["acc"]] == [True, True]  # the last report that has it
    (none,) = trial_rows(record(replace(one, reports=(reports[0]._replace(metrics={"acc": 1.0}),))))
    assert (none.best, none.metrics) == (None, {"acc": [None, 1.0]})  # without a loss, no report is the best


def attempts(*lines):
    """A trial's attempts and costs, by its events, of which each is 10 s after the one before."""
    started = {"config": {}, "resources": {"CPU": 2}, "node": "n"}
    events = [
        {"trial": "0", "time": 10.0 * n, **(started if line["event"] == "trial_started" else {}), **line}
        for n, line in enumerate(lines)
    ]
    (one,) = folding(events).records()
    (row,) = trial_rows(record(one))
    return row.attempts, cost_of(one)


def test_attempts_are_starts_after_a_failure_and_all_their_epochs_cost():
    start, end = {"event": "trial_started"}, {"event": "trial_ended", "status": "completed", "reason": ""}
    failed = {"event": "trial_failed", "error": "lost"}
    one, two = ({"event": "report", "epoch": epoch, "metrics": {"loss": 1.0}} for epoch in (1, 2))
    pause = {"event": "decision", "action": "pause", "epoch": 1, "rung": 1, "bracket": 0, "value": 1.0,
             "cutoff": None, "recorded": 0, "reason": "waits"}  # fmt: skip
    assert attempts(start, one, end) == (1, "1 epoch in 20 s on 2 CPU: 40 CPU-seconds")
    assert attempts(start, one, two, failed, start, one, two, end) == (
        2, "4 epochs in 2 attempts in 60 s (15 s per epoch) on 2 CPU: 120 CPU-seconds"
    )  # fmt: skip
    assert attempts(start, failed, start, failed, end | {"status": "failed"})[0] == 2
    assert attempts(start, one, pause, start, two, end)[0] == 1  # the return of a paused trial is no attempt
    assert attempts({"event": "trial_suggested"})[0] == 0
