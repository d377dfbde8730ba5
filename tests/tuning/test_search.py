"""Whole searches through the real command, on one Ray."""

import csv
import json
import math

import pytest
from journals import read
from killing import troubled
from tiers import further

from tuner.errors.output import MAX_PRINTED
from tuner.record.texts import formatted
from tuner.spec.experiment import PAIRS

# The other pairs run without training in `test_every_cut.py`; here, all that pause trials train, too.
FIRST = ("grid", "pbt")
OTHERS = [("bohb", "bohb"), ("random", "hyperband"), ("refine", "median"), ("hyperopt", "fifo"), ("optuna", "asha")]
PAUSING = {"asha-promotion", "hyperband", "pbt"}
MORE = [(searcher, scheduler) for searcher, those in PAIRS.items() for scheduler in those if scheduler in PAUSING]


@pytest.mark.parametrize(
    ("searcher", "scheduler"), [FIRST, *further([*OTHERS, *(pair for pair in MORE if pair not in (FIRST, *OTHERS))], 5)]
)
def test_a_pair_finds_an_answer_with_two_workers(search, searcher, scheduler):
    ran = search("tiny.py", "--searcher", searcher, "--scheduler", scheduler, "--num-samples", "5", "--max-epochs", "4")
    assert ran.code == 0
    assert len(ran.record.trials) == 5
    assert {trial.status for trial in ran.record.trials} <= {"completed", "pruned"}
    assert all(trial.reason for trial in ran.record.trials)
    assert "test        loss" in ran.out


def test_the_folder_holds_what_the_contract_says(search_here):
    import torch

    ran = search_here("tiny.py")
    folder = ran.folder
    saved = json.loads((folder / "experiment.json").read_text())
    assert {"options", "best_rule", "space", "data", "versions", "git_commit", "command"} <= set(saved)
    rows = list(csv.DictReader((folder / "trials.csv").open()))
    assert [row["trial"] for row in rows] == sorted(ran.trials)
    metrics = json.loads((folder / "best" / "metrics.json").read_text())
    assert set(metrics["test"]) == {"loss", "accuracy"}
    trial, report = ran.record.best()
    assert metrics["validation"]["loss"] == report.metrics["loss"]
    assert json.loads((folder / "best" / "config.json").read_text())["config"] == trial.config
    torch.load(folder / "best" / "model.pt", weights_only=True)
    kinds = {event["event"] for event in read(folder / "journal.jsonl")}
    assert kinds == {
        "experiment_started", "trial_suggested", "trial_started", "report", "decision", "trial_ended",
        "experiment_finished",
    }  # fmt: skip


BF16 = ["--precision", "bf16", "--num-samples", "3", "--max-epochs", "2"]


@pytest.mark.parametrize("options", [[], pytest.param(BF16, marks=pytest.mark.slow)], ids=str)
def test_the_winner_is_trained_again_to_the_last_digit(search_here, capsys, options):
    from tuner import train

    ran = search_here("tiny.py", *options)
    config = ran.folder / "best" / "config.json"
    assert json.loads(config.read_text())["precision"] == ("bf16" if options else "fp32")
    assert train.main([str(config)]) == 0
    trial, report = ran.record.best()
    output = capsys.readouterr().out
    assert f"loss {formatted(report.metrics['loss'])}" in output
    again = [line for line in output.splitlines() if line.startswith("epoch ")]
    recorded = [formatted(each.metrics["loss"]) for each in trial.reports]
    assert [line.split("loss ")[1].split(",")[0] for line in again][: len(recorded)] == recorded


def test_the_winner_of_an_extended_search_is_trained_again_with_a_line_about_its_schedule(search_here, capsys):
    from tuner import train

    once = "--num-samples", "1", "--scheduler", "fifo"
    ran = search_here("tiny.py:cosine", *once, "--max-epochs", "2")
    assert train.main([str(ran.folder / "best" / "config.json")]) == 0
    assert "schedule" not in capsys.readouterr().out
    ran = search_here("", "--resume", "test", "--max-epochs", "4", name="test")
    assert ran.code == 0 and ran.record.shorter(ran.record.trials[0]) == (2, 2)
    assert train.main([str(ran.folder / "best" / "config.json")]) == 0
    assert "NOTE: up to epoch 2, the search trained it with a schedule for 2 epochs; this" in capsys.readouterr().out


IN_ITS_FUNCTION = ["none", "raises", "nan", "inf", "unnamed", "silent", "last"]  # what needs no worker process
IN_ITS_WORKER = ["greedy", "slow", "prints", "dies", "last"]


def in_trouble(search, tmp_path, troubles):
    """The search of a trial for each trouble, its trials by trouble, and how they ended."""
    ran = search(troubled(tmp_path, troubles), "--scheduler", "fifo")
    assert ran.code == 0
    by_trouble = {trial.config["trouble"]: trial for trial in ran.record.trials}
    assert list(by_trouble) == troubles
    ends = {trouble: (trial.status, trial.reason) for trouble, trial in by_trouble.items()}
    for trouble in {"none", "slow", "greedy", "prints", "last"} & ends.keys():
        assert ends[trouble] == ("completed", "trained its 5 epochs"), trouble
    return ran, by_trouble, ends


def test_troubled_trials_do_not_touch_the_others(search_here, tmp_path):
    ran, by_trouble, ends = in_trouble(search_here, tmp_path, IN_ITS_FUNCTION)
    assert ends["raises"][0] == "failed" and "a bug of the user's" in ends["raises"][1]
    assert ends["nan"][0] == "pruned" and "loss is nan at epoch 3" in ends["nan"][1]
    assert ends["inf"][0] == "pruned" and "loss is inf at epoch 3" in ends["inf"][1]
    assert ends["unnamed"][0] == "failed" and "reports no 'loss' at epoch 3; it reports other" in ends["unnamed"][1]
    assert ends["silent"] == ("failed", "ended without a report: its function must call tune.report at least once")
    rows = {row["trial"]: row for row in csv.DictReader((ran.folder / "trials.csv").open())}
    assert "a bug of the user's" in rows[by_trouble["raises"].id]["error"]


@pytest.mark.slow  # 19 s; the test above, in one process, always runs
def test_workers_in_trouble_do_not_touch_the_others(search, tmp_path):
    ran, by_trouble, ends = in_trouble(search, tmp_path, IN_ITS_WORKER)
    printed = ran.folder / "ray" / by_trouble["prints"].id / "stdout"
    assert printed.stat().st_size < MAX_PRINTED + 1000 and "what follows was not kept" in printed.read_text()[-200:]
    assert ends["dies"][0] == "failed" and "exit code 7" in ends["dies"][1]


def test_a_metric_that_no_trial_reports_is_a_wrong_request(search_here):
    ran = search_here("troubled.py", "--metric", "los")
    assert ran.code == 2
    assert "reports no 'los' at epoch 1; it reports loss" in ran.err
    assert "did you mean 'loss'?" in ran.err


def test_all_diverged_is_exit_code_1(search_here, tmp_path):
    space = tmp_path / "diverges.py"
    space.write_text(
        '"""Always NaN."""\nfrom ray import tune\nfrom tuner.space import Space\n'
        "def train(config):\n    tune.report({'loss': float('nan')})\n"
        "space = Space(params={'x': tune.uniform(0, 1)}, train=train, num_samples=3)\n"
    )
    ran = search_here(str(space))
    assert ran.code == 1
    assert "no answer: no trial has a finite loss" in ran.out and not (ran.folder / "best").exists()
    assert (ran.folder / "trials.csv").read_text().count("\n") == 4
    assert all("loss is nan" in trial.reason for trial in ran.record.trials)


def test_a_time_budget_ends_the_search_with_an_answer(search_here):
    ran = search_here("functions.py:endless", "--time-budget", "2s")
    assert ran.code == 0
    assert "NOTE: the time budget of 2s is over" in ran.out and " --time-budget 4s\n" in ran.out
    *_, last = read(ran.folder / "journal.jsonl")
    assert (last["event"], last["state"], last["out_of_time"]) == ("experiment_finished", "finished", True)
    assert math.isfinite(ran.record.best()[1].metrics["loss"])


def test_without_shrinking_the_trial_fails_as_out_of_memory(search_here):
    ran = search_here("tiny.py:scarce", "--scheduler", "fifo", "--on-oom", "fail")
    assert ran.code == 0
    assert {trial.config["most"]: trial.status for trial in ran.record.trials} == {4: "failed", 1000: "completed"}
    failed = [event for event in read(ran.folder / "journal.jsonl") if event["event"] == "trial_failed"]
    assert [event["kind"] for event in failed] == ["oom"] and "2.00 GiB" in failed[0]["error"]


@pytest.mark.slow
def test_a_worker_that_starts_is_not_ended_for_one_that_is_free(search, tmp_path, monkeypatch):
    (tmp_path / "late").mkdir()
    monkeypatch.setenv("LATE", str(tmp_path / "late"))
    ran = search("functions.py:late", "--num-samples", "60")
    started = [event["pid"] for event in read(ran.folder / "journal.jsonl") if event["event"] == "trial_started"]
    assert ran.code == 0 and len(started) == 60
    assert len(set(started)) == 2 and list((tmp_path / "late").iterdir())
