"""What a person reads before and after a search."""

import sys
from dataclasses import replace
from pathlib import Path

import asking
import pytest
from journals import typed

from tuner.core.events import RETURNED, Report
from tuner.record.records import TrialRecord
from tuner.record.results import ExperimentRecord
from tuner.record.texts import command
from tuner.spec.experiment import Experiment
from tuner.spec.spaces import find_space
from tuner.tuning.answer import result
from tuner.tuning.call import Request
from tuner.tuning.checks.request import load_data
from tuner.tuning.output import console

TINY = str(Path(__file__).parents[2] / "spaces" / "tiny.py")


def request_of(tmp_path, *argv):
    return asking.request_of("--space", TINY, "--results", tmp_path, "--name", "mine", "--wandb", "disabled", *argv)


def test_the_plan_says_what_will_be_done(tmp_path):
    options = ["--time-budget", "30m", "--num-samples", "6", "--cpus-per-trial", "1", "--gpus-per-trial", "0"]
    text = "\n".join(console.plan(request_of(tmp_path, *options)))
    assert "width {2, 4, 8}, lr loguniform(0.0001, 0.1), batch_size {4, 8, 16}" in text
    assert "settings    6 by random" in text
    rule = "asha: compares trials after epochs 1, 2, 4 and continues the best 1/2; a trial trains at most 8 epochs"
    assert rule in text
    assert "epochs      at most 48 (8 per trial)\n" in text and "1 CPU per trial" in text
    assert f"results     {tmp_path}/mine" in text and "W&B         disabled" in text


@pytest.mark.parametrize(("scheduler", "compared"), [("asha", "train_loss (min)"), ("fifo", "no trials")])
def test_the_plan_says_by_which_metric_the_scheduler_compares(tmp_path, scheduler, compared):
    plan = console.plan(request_of(tmp_path, "--prune-by", "train_loss", "--scheduler", scheduler))
    answer = "the answer and the searcher use loss (min)"
    assert f"metrics     {scheduler} compares {compared}; {answer}" in plan


def test_the_plan_of_a_budget_says_how_many_settings_it_pays_for(tmp_path):
    one = ["--max-concurrent-trials", "1"]
    plan = console.plan(request_of(tmp_path, "--epoch-budget", "108", "--time-budget", "1000s", *one))
    assert "settings    as many as the budget pays for, by forest" in plan and "epochs      at most 8 per trial" in plan
    # After epochs 1, 2 and 4, one half goes on: 1 + 1/2 + 2/4 + 4/8 epochs. The last trial takes 8 epochs.
    each = "the time budget of 1000s and the budget of 108 epochs on 1 worker; a setting trains 2.5 epochs on average"
    numbers = "40 if an epoch takes 1 s, 36 if an epoch takes 10 s, 3 if an epoch takes 1 min"
    assert f"budget      {each}: about {numbers} (an estimate)" in plan
    plan = console.plan(request_of(tmp_path, "--epoch-budget", "7"))
    assert any(line.startswith("NOTE: --epoch-budget 7: too little for a trial of 8 epochs; raise") for line in plan)
    plan = console.plan(request_of(tmp_path, "--epoch-budget", "1000", "--searcher", "grid"))
    assert any("about 45 settings" in line for line in plan)  # the grid has no more
    plan = console.plan(request_of(tmp_path, "--epoch-budget", "80", "--scheduler", "fifo"))
    assert any("a setting trains at most 8 epochs: about 10 settings (an estimate)" in line for line in plan)


def test_a_resume_says_that_its_budget_is_used_up_or_below_one_trial(tmp_path):
    request, reported = request_of(tmp_path, "--time-budget", "60s"), {"event": "report", "metrics": {"loss": 1.0}}
    begun = {"event": "trial_started", "trial": "00000", "config": {}, "node": "", "resources": {"CPU": 1.0}}
    events = [{"event": "experiment_started", "time": 0.0}, {**begun, "time": 5.0}]
    events += [{**reported, "trial": "00000", "epoch": epoch, "time": 10.0 * epoch} for epoch in (1, 2, 3)]
    for history, note in (
        (events, "--time-budget 60s: too little for a trial of 8 epochs, which takes 1 min 20 s"),
        (
            [*events, {"event": "experiment_finished", "state": "finished", "time": 60.0}],
            "earlier sessions have used up",
        ),
    ):
        lines = console.heading(replace(request, history=typed(history)))
        assert any(line.startswith(f"NOTE: {note}") for line in lines), lines
    assert any("is used up" in line for line in console.plan(replace(request, history=typed(history))))


@pytest.mark.parametrize(("searcher", "share"), [("random", "up to half of its random"), ("refine", "no other")])
def test_the_plan_says_what_a_prior_does(tmp_path, searcher, share):
    plan = console.plan(request_of(tmp_path, "--prior", "lr=0.01", "width=4", "--searcher", searcher))
    assert f"known       --prior lr=0.01 width=4: 1 setting first; {searcher} draws {share} settings around it" in plan


def test_a_mode_that_contradicts_the_metric_is_noted_once_before_the_first_trial(tmp_path):
    for mode, number in (("min", 1), ("max", 0)):
        request = request_of(tmp_path, "--metric", "accuracy", "--mode", mode)
        for lines in (console.plan(request), console.heading(request)):
            notes = [line for line in lines if line.startswith("NOTE: mode is min, so a smaller accuracy")]
            assert len(notes) == number, lines


def test_a_resumed_search_names_the_rungs_that_a_trial_has_placed():
    script, told = find_space(str(Path(TINY).with_name("functions.py"))), {"trial": "00000", "time": 1.0}
    report = told | {"event": "report", "epoch": 8, "metrics": {"loss": 0.5}}
    ended = told | {"event": "trial_ended", "status": "completed", "reason": RETURNED}
    learned = told | {"event": "length_learned", "epochs": 8, "rungs": [1, 2, 4]}
    experiment = Experiment(scheduler="asha", max_epochs=1000, grace_period=40, auto_grace=True)
    request = Request(experiment, script, {}, [], None, "")
    assert "after epochs 40, 80, 160, 320, 640 (until a trial ends by itself: its length" in console.schedule(request)
    unknown = console.schedule(replace(request, history=typed([report, ended])))
    assert "after epochs 40" in unknown  # the search knew the length, and one trial ended early
    history = typed([report, learned, ended])
    assert "after epochs 1, 2, 4 and continues" in console.schedule(replace(request, history=history))


def test_a_note_says_that_hyperband_compares_few_trials_if_few_run_at_once():
    experiment = Experiment(searcher="random", scheduler="hyperband", max_epochs=9, reduction_factor=3)
    said = console.schedule(Request(experiment, find_space(TINY), {}, [], None, ""))
    assert said.endswith("the first 3 of every 17 trials are never stopped")
    (note,) = console.notes_on_brackets(experiment, 4)
    assert "with 4 trials at once, brackets of 5, 9 stop few trials or none" in note
    for concurrent in (2, 3):
        (note,) = console.notes_on_brackets(experiment, concurrent)
        assert f"hyperband will prune no trial: {concurrent} trials at once stay in its first bracket" in note
        assert "--scheduler asha, or let 4 or more trials run at once" in note and "--cpus-per-trial" in note
    assert console.notes_on_brackets(experiment, 9) == []
    assert console.notes_on_brackets(Experiment(), 1) == []


def test_the_first_lines_name_the_data_and_its_notice(tmp_path):
    request = load_data(request_of(tmp_path))
    request = replace(request, splits=replace(request.splits, notice="a sample of the data"))
    text = "\n".join(console.heading(request))
    assert text.startswith("mine: 6 by random; asha: ")
    assert "data: made by a seed (160 train, 40 validation, 40 test)" in text
    assert "!!! a sample of the data !!!" in text


@pytest.mark.parametrize(
    ("state", "out_of_time", "more"),
    [
        ("finished", False, "extend      uv run python -m tuner.run --resume mine --results {} --num-samples 12"),
        ("finished", True, "extend      uv run python -m tuner.run --resume mine --results {} --time-budget 3600s"),
        ("interrupted", False, "resume      uv run python -m tuner.run --resume mine --results {}"),
    ],
)
def test_the_last_lines_say_how_to_go_on_as_the_search_was_started(tmp_path, monkeypatch, state, out_of_time, more):
    monkeypatch.setenv("UV", "/usr/bin/uv")
    request = request_of(tmp_path)
    trial = TrialRecord("00003", {}, status="failed", reason="ValueError: wrong")
    experiment = replace(request.experiment, time_budget="30m")
    record = ExperimentRecord(experiment, {}, (trial,), state, "the time budget of 30m is over", False, out_of_time)
    text = "\n".join(result.ending(request, record, None))
    assert "failed      trial 00003 in epoch 1: ValueError: wrong" in text
    assert f"NOTE: {'out of time: ' * out_of_time}the time budget of 30m is over" in text
    assert ("no answer yet" if state == "interrupted" else "no answer: no trial has a finite loss") in text
    assert more.format(tmp_path) in text


def test_a_command_names_the_project_where_uv_would_not_find_it(tmp_path, monkeypatch):
    clone, own = tmp_path / "a clone", tmp_path / "own"
    for folder in (clone / "examples", own):
        folder.mkdir(parents=True)
    monkeypatch.setenv("UV", "/usr/bin/uv")
    monkeypatch.setattr("sys.prefix", str(clone / ".venv"))
    monkeypatch.chdir(own)
    assert command("serve") == f"{sys.executable} -m tuner.serve"  # no project is beside the environment
    (clone / "pyproject.toml").touch()
    assert command("serve", "--port 1") == f"uv run --project '{clone}' python -m tuner.serve --port 1"
    monkeypatch.chdir(clone / "examples")
    assert command("serve") == "uv run python -m tuner.serve"
    monkeypatch.chdir(own)
    monkeypatch.setenv("UV", "")
    assert command("serve") == "python -m tuner.serve"
    monkeypatch.setenv("PATH", "/usr/bin")  # its python is another one
    assert command("serve") == f"{sys.executable} -m tuner.serve"


def test_memory_that_grew_is_told_of_the_trial_where_it_grew_fastest():
    def grown(number, *sizes):
        metrics = [{"rss_growth_bytes": size} if size else {} for size in sizes]
        reports = tuple(Report(epoch, each, None, 0.0) for epoch, each in enumerate(metrics, 1))
        return TrialRecord(f"{number:05d}", {}, reports=reports)

    (text,) = result.growing([grown(0, 0, 2 << 20), grown(1, 0, 5 << 20, 3 << 20), grown(2, 0)])
    where = "in 2 of 2 long trials, by 5.0 MiB per epoch in trial 00001"
    assert text.startswith(f"NOTE: resident memory grew from epoch to epoch {where}")
    steady = [grown(number, *[0] * 8) for number in (3, 4)]
    assert result.growing([grown(0, 0, 2 << 20), grown(1, 5 << 20), *steady]) == []  # half of them: the allocator
    assert result.growing([grown(0, 0, 2 << 20), grown(1, 5 << 20), steady[0]])


def test_failures_are_grouped_by_place_and_the_newest_come_first(tmp_path):
    def failed(number, epoch, why, line):
        reports = tuple(Report(e, {}, None, 0.0) for e in range(1, epoch))
        reason = f"ValueError: {why} (/home/me/space.py, line {line})"
        (folder := tmp_path / "ray" / f"{number:05d}").mkdir(parents=True)
        (folder / "error.txt").write_text("Traceback")
        return TrialRecord(folder.name, {}, status="failed", reason=reason, reports=reports, changed_at=number)

    old = [failed(n, 2, f"width {n}", 12) for n in range(7)]
    new = [failed(7, 1, "no", 30), failed(8, 4, "no", 30), TrialRecord("00009", {}, status="pruned")]
    first, second = result.failures([*old, *new], tmp_path)
    assert first == (
        "failed      2 trials, 00008 the last, in epochs 1 to 4: ValueError: no (/home/me/space.py, line 30); "
        f"full traceback: {tmp_path}/ray/00008/error.txt"
    )
    assert second.startswith("failed      7 trials, 00006 the last, in epoch 2: ValueError: width 6 ")
    many = [failed(n, 1, "no", n) for n in range(10, 20)]
    assert result.failures(many, tmp_path)[-1] == "... and 5 other errors, in trials.csv"
