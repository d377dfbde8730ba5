"""The table of a running search, and its progress line."""

import time
from types import SimpleNamespace

import pytest

from tuner.drive import progress
from tuner.spec.experiment import Experiment


def trial(number, status="RUNNING", epoch=1, losses=(1.0,)):
    analysis = {"loss": {"min": min(losses), "max": max(losses)}} if losses else {}
    return SimpleNamespace(
        trial_id=f"{number:05d}", status=status, last_result={"training_iteration": epoch}, metric_analysis=analysis,
        is_finished=lambda: status in ("TERMINATED", "ERROR"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1 m 0 s"), (185, "3 m 5 s"), (3600, "1 h 0 m"), (7800, "2 h 10 m")],
)
def test_a_duration_is_told_in_two_units(seconds, text):
    assert progress.duration(seconds) == text


def test_the_progress_line_counts_what_is_done_running_and_failed():
    experiment = Experiment(max_epochs=8)
    trials = [
        trial(0, "TERMINATED", 8, (0.5,)),
        trial(1, "TERMINATED", 2, (0.9,)),
        trial(2, "ERROR"),
        trial(3),
        trial(4, "PAUSED"),
    ]
    text = progress.progress_line(trials, experiment, 10, time.time() - 30, None)
    assert text.startswith("3/10 done, 1 pruned, 1 running, 1 paused, 1 failed | best loss 0.5000 (trial 00000) | 30 s")
    assert text.endswith("about 1 m 10 s left")


def test_the_progress_line_before_the_first_report():
    text = progress.progress_line([trial(0, losses=())], Experiment(), 10, time.time(), None)
    assert text == "0/10 done, 0 pruned, 1 running | 0 s"


def test_a_time_budget_bounds_what_is_left():
    text = progress.progress_line([trial(0, "TERMINATED", 10)], Experiment(), 100, time.time() - 100, 25.0)
    assert text.endswith("about 25 s left")


def test_the_best_is_the_largest_where_larger_is_better():
    trials = [trial(0, losses=(0.1, 0.9)), trial(1, losses=(0.5,))]
    assert progress.best_so_far(trials, Experiment(mode="max")) == "best loss 0.9000 (trial 00000)"
    assert progress.best_so_far(trials, Experiment(mode="min")) == "best loss 0.1000 (trial 00000)"


def test_a_column_is_left_out_of_a_table_that_is_too_wide():
    table = ["+-----+-------+------+", "| n   | loc   | loss |", "|-----+-------+------|", "| 0   | a:1   | 2.0  |"]
    left = ["+-----+------+", "| n   | loss |", "|-----+------|", "| 0   | 2.0  |"]
    assert progress.without_column([*table, "..."], "loc") == [*left, "..."]
    assert progress.without_column(left, "loc") == left
