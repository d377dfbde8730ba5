"""What a person reads before, during and after a search."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray import tune

from tuner import console, run, session
from tuner.experiment import CHOICES, PAIRS, Experiment
from tuner.records import Report, TrialRecord
from tuner.space import find_space

TINY = str(Path(__file__).parent / "spaces" / "tiny.py")


def request_of(tmp_path, *argv):
    found = find_space(TINY)
    given = ["--space", TINY, "--results", str(tmp_path), "--name", "mine", "--wandb", "disabled", *argv]
    return session.begin(run.parse(given, session.defaults_of(found)).experiment, found, given)


def trial(number, status="RUNNING", epoch=1, losses=(1.0,)):
    analysis = {"loss": {"min": min(losses), "max": max(losses)}} if losses else {}
    return SimpleNamespace(
        trial_id=f"{number:05d}", status=status, last_result={"training_iteration": epoch}, metric_analysis=analysis,
        is_finished=lambda: status in ("TERMINATED", "ERROR"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1 m 0 s"), (185, "3 m 5 s"), (3600, "1 h 0 m"), (7800, "2 h 10 m")],
)
def test_a_duration_is_told_in_two_units(seconds, said):
    assert console.duration(seconds) == said


def test_the_progress_line_counts_what_is_done_running_and_failed():
    experiment = Experiment(max_epochs=8)
    trials = [
        trial(0, "TERMINATED", 8, (0.5,)),
        trial(1, "TERMINATED", 2, (0.9,)),
        trial(2, "ERROR"),
        trial(3),
        trial(4, "PAUSED"),
    ]
    said = console.progress_line(trials, experiment, 10, time.time() - 30, None)
    assert said.startswith(
        "3/10 done, 1 stopped early, 1 running, 1 paused, 1 failed | best loss 0.5000 (trial 00000) | 30 s"
    )
    assert said.endswith("about 1 m 10 s left")


def test_the_progress_line_before_the_first_report():
    said = console.progress_line([trial(0, losses=())], Experiment(), 10, time.time(), None)
    assert said == "0/10 done, 0 stopped early, 1 running | 0 s"


def test_a_time_budget_bounds_what_is_left():
    said = console.progress_line([trial(0, "TERMINATED", 10)], Experiment(), 100, time.time() - 100, 25.0)
    assert said.endswith("about 25 s left")


def test_the_best_is_the_largest_where_larger_is_better():
    trials = [trial(0, losses=(0.1, 0.9)), trial(1, losses=(0.5,))]
    assert console.best_so_far(trials, Experiment(mode="max")) == "best loss 0.9000 (trial 00000)"
    assert console.best_so_far(trials, Experiment(mode="min")) == "best loss 0.1000 (trial 00000)"


def test_the_plan_says_what_will_be_done(tmp_path):
    said = "\n".join(
        console.plan(request_of(tmp_path, "--time-budget", "30m", "--cpus-per-trial", "1", "--gpus-per-trial", "0"))
    )
    assert "width {2, 4, 8}, lr loguniform(0.0001, 0.1), batch_size {4, 8, 16}" in said
    assert "settings    6 by random" in said
    assert "asha: at epochs 1, 2, 4, 8 the best 1/2 go on, to 8 at most" in said
    assert "48 at most (8 a trial), and 30m at most" in said and "1 CPU a trial" in said
    assert f"results     {tmp_path}/mine" in said and "W&B         disabled" in said


def test_the_plan_of_a_cluster_asks_it_later(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "check_head", lambda address: None)  # there may be none on this machine
    said = "\n".join(console.plan(request_of(tmp_path, "--address", "auto")))
    assert "those of the cluster at auto" in said


@pytest.mark.parametrize("searcher", CHOICES["searcher"])
def test_the_plan_names_every_searcher_and_scheduler(tmp_path, searcher):
    for scheduler in PAIRS[searcher]:
        said = console.plan(request_of(tmp_path, "--searcher", searcher, "--scheduler", scheduler))
        assert any(line.startswith(f"scheduler   {scheduler}: ") for line in said)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--searcher", "grid"], "6, drawn by the seed, of a grid of 45 (--num-samples 45 tries all)"),
        (["--searcher", "grid", "--num-samples", "45"], "all of a grid of 45"),
        (
            ["--searcher", "refine", "--num-samples", "7"],
            "4 at random, then 3 neighbours of the best of them",
        ),
        (["--searcher", "hyperopt"], "6 by hyperopt"),
    ],
)
def test_the_plan_says_how_settings_are_proposed(tmp_path, argv, said):
    assert console.settings(request_of(tmp_path, *argv)) == said


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (tune.choice([4, 8]), "{4, 8}"),
        (tune.choice(list(range(20))), "{0, 1, 2, 3, 4, 5, 6, 7, 8, ...}"),
        (tune.loguniform(1e-4, 1e-1), "loguniform(0.0001, 0.1)"),
        (tune.randint(1, 5), "randint(1, 5)"),
        (tune.randn(), "normal()"),
        (tune.sample_from(lambda spec: 1), "sample_from()"),
        (tune.grid_search([1, 2]), "{1, 2}"),
    ],
)
def test_a_domain_is_told_in_a_word(declared, said):
    assert console.domain(declared) == said


def test_the_first_lines_name_the_data_and_its_notice(tmp_path):
    from dataclasses import replace

    request = session.load_data(request_of(tmp_path))
    request = replace(request, splits=replace(request.splits, notice="a sample of the data"))
    said = "\n".join(console.heading(request))
    assert said.startswith("mine: 6 by random; asha: ")
    assert "data: made by a seed (160 train, 40 validation, 40 test)" in said
    assert "!!! a sample of the data !!!" in said


@pytest.mark.parametrize(("state", "more"), [("finished", "--num-samples 12"), ("interrupted", "resume")])
def test_the_last_lines_say_how_to_go_on(tmp_path, state, more):
    request = request_of(tmp_path)
    record = SimpleNamespace(trials=[TrialRecord("00003", {}, status="failed", reason="ValueError: wrong")])
    outcome = SimpleNamespace(state=state, reason="the time budget of 30m is over")
    done = SimpleNamespace(request=request, record=record, answer=None, outcome=outcome)
    said = "\n".join(console.ending(done))
    assert "failed: trial 00003: ValueError: wrong" in said and "NOTE: the time budget of 30m is over" in said
    assert ("no answer yet" if state == "interrupted" else "no answer: no trial has a finite loss") in said
    assert f"python -m tuner.run --resume mine --results {tmp_path}" in said and more in said


def test_a_column_is_left_out_of_a_table_that_is_too_wide():
    table = ["+-----+-------+------+", "| n   | loc   | loss |", "|-----+-------+------|", "| 0   | a:1   | 2.0  |"]
    left = ["+-----+------+", "| n   | loss |", "|-----+------|", "| 0   | 2.0  |"]
    assert console.without_column([*table, "..."], "loc") == [*left, "..."]
    assert console.without_column(left, "loc") == left


def test_memory_that_grew_is_told_of_the_trial_where_it_grew_fastest():
    def grown(number, *sizes):
        reports = tuple(
            Report(i + 1, {"rss_growth_bytes": size} if size else {}, None, 0.0) for i, size in enumerate(sizes)
        )
        return TrialRecord(f"{number:05d}", {}, reports=reports)

    assert console.growing([grown(0, 0, 0), TrialRecord("00001", {})]) == []
    (said,) = console.growing([grown(0, 0, 2 << 20), grown(1, 0, 5 << 20, 3 << 20), grown(2, 0)])
    assert said.startswith(
        "NOTE: resident memory grew from epoch to epoch in 2 trials, by 5.0 MiB an epoch in trial 00001"
    )
