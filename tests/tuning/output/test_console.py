"""What a person reads before and after a search."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import asking
import pytest
from ray import tune
from ray.tune.schedulers import HyperBandScheduler

from tuner.record.records import Report, TrialRecord
from tuner.record.results import ExperimentRecord
from tuner.space import Space
from tuner.spec.experiment import CHOICES, PAIRS, Experiment
from tuner.spec.spaces import find_space
from tuner.tuning.answer import ending
from tuner.tuning.answer.best import MODEL, readme
from tuner.tuning.answer.conclusion import Answer
from tuner.tuning.checks.data import load_data
from tuner.tuning.output import console
from tuner.views.commands import command, start_again

TINY = str(Path(__file__).parents[2] / "spaces" / "tiny.py")


def request_of(tmp_path, *argv):
    return asking.request_of("--space", TINY, "--results", tmp_path, "--name", "mine", "--wandb", "disabled", *argv)


def schedule(experiment):
    return console.schedule(experiment, find_space(TINY).space)


def test_the_plan_says_what_will_be_done(tmp_path):
    text = "\n".join(
        console.plan(request_of(tmp_path, "--time-budget", "30m", "--cpus-per-trial", "1", "--gpus-per-trial", "0"))
    )
    assert "width {2, 4, 8}, lr loguniform(0.0001, 0.1), batch_size {4, 8, 16}" in text
    assert "settings    6 by random" in text
    rule = "asha: compares trials after epochs 1, 2, 4 and continues the best 1/2; a trial trains at most 8 epochs"
    assert rule in text
    assert "at most 48 (8 per trial), and at most 30m" in text and "1 CPU per trial" in text
    assert f"results     {tmp_path}/mine" in text and "W&B         disabled" in text


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--searcher", "grid"], "6, drawn by the seed, of a grid of 45 (--num-samples 45 tries all)"),
        (["--searcher", "grid", "--num-samples", "45"], "all of a grid of 45"),
        (
            ["--searcher", "refine", "--num-samples", "7"],
            "4 random, then 3 neighbours of the best one",
        ),
        (["--searcher", "hyperopt"], "6 by hyperopt"),
        (["--searcher", "forest"], "6 by forest, all random: its model needs reports of 10 trials"),
        (["--searcher", "forest", "--num-samples", "11"], "11 by forest"),
    ],
)
def test_the_plan_says_how_settings_are_proposed(tmp_path, argv, text):
    assert console.settings(request_of(tmp_path, *argv)) == text


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (tune.choice([4, 8]), "{4, 8}"),
        (tune.choice(list(range(20))), "{0, 1, 2, 3, 4, 5, 6, 7, 8, ...}"),
        (tune.loguniform(1e-4, 1e-1), "loguniform(0.0001, 0.1)"),
        (tune.randint(1, 5), "randint(1, 5)"),
        (tune.quniform(0, 1, 0.25), "uniform(0, 1, step 0.25)"),
        (tune.qrandint(2, 20, 3), "randint(2, 20, step 3)"),
        (tune.randn(), "normal()"),
        (tune.sample_from(lambda spec: 1), "sample_from()"),
        (tune.grid_search([1, 2]), "{1, 2}"),
    ],
)
def test_a_domain_is_told_in_a_word(declared, text):
    assert console.domain(declared) == text


@pytest.mark.parametrize(("max_epochs", "factor"), [(8, 2), (10, 2), (81, 3), (1, 2)])
def test_the_plan_says_how_many_trials_hyperband_never_stops(max_epochs, factor):
    experiment = Experiment(searcher="random", scheduler="hyperband", max_epochs=max_epochs, reduction_factor=factor)
    theirs = HyperBandScheduler(max_t=max_epochs, reduction_factor=factor)
    sizes = [theirs._get_n0(s) for s in range(theirs._s_max_1) if theirs._get_r0(s)]
    assert console.bracket_sizes(experiment) == sizes
    said = f"the first {sizes[0]} of every {sum(sizes)} trials are never stopped"
    assert schedule(experiment).endswith(said)


@pytest.mark.parametrize(
    ("brackets", "max_epochs", "ending"),
    [
        (1, 9, "a trial trains at most 9 epochs"),
        (2, 9, "; 2 brackets, with the first rung after epoch 1, 2"),
        (4, 8, "; 4 brackets, with the first rung after epoch 1, 2, 4, none"),
    ],
)
def test_the_plan_says_where_the_rungs_of_each_bracket_begin(brackets, max_epochs, ending):
    assert schedule(Experiment(scheduler="asha-promotion", max_epochs=max_epochs, brackets=brackets)).endswith(ending)


@pytest.mark.parametrize("scheduler", sorted({each for pairs in PAIRS.values() for each in pairs}))
def test_the_plan_names_each_scheduler(scheduler):
    searcher = next(searcher for searcher in CHOICES["searcher"] if scheduler in PAIRS[searcher])
    assert schedule(Experiment(searcher=searcher, scheduler=scheduler)).startswith(f"{scheduler}: ")


def test_the_plan_of_a_function_says_that_its_trials_may_end_earlier():
    space = Space(params={"x": tune.uniform(0, 1)}, train=lambda config: None)

    def planned(**options):
        return console.schedule(Experiment(max_epochs=10, **options), space)

    assert planned(scheduler="fifo") == "fifo: every trial trains at most 10 epochs"
    for scheduler in ("asha", "asha-promotion"):
        text = planned(scheduler=scheduler, grace_period=2)
        assert "after epochs 2, 4, 8 (until a trial ends earlier by itself: its length then places the rungs)" in text
        assert ": every trial trains at most 10 epochs, because" in planned(scheduler=scheduler, grace_period=10)
    assert "until" not in schedule(Experiment(scheduler="asha", max_epochs=10))


def test_a_note_says_that_a_named_scheduler_cannot_pause_trials_without_checkpoints():
    promotion = Experiment(scheduler="asha-promotion")
    loses, saves = find_space(str(Path(TINY).parent / "late.py")).space, find_space(TINY).space
    (note,) = console.notes_on_checkpoints(promotion, loses)
    assert "cannot pause" in note and "by the rule of asha" in note
    assert console.notes_on_checkpoints(promotion, saves) == console.notes_on_checkpoints(Experiment(), loses) == []


def test_a_mode_that_contradicts_the_metric_is_noted_once_before_the_first_trial(tmp_path):
    for mode, number in (("min", 1), ("max", 0)):
        request = request_of(tmp_path, "--metric", "accuracy", "--mode", mode)
        for lines in (console.plan(request), console.heading(request)):
            notes = [line for line in lines if line.startswith("NOTE: mode is min, so a smaller accuracy")]
            assert len(notes) == number, lines


def test_a_note_says_that_hyperband_compares_few_trials_if_few_run_at_once():
    experiment = Experiment(searcher="random", scheduler="hyperband", max_epochs=9, reduction_factor=3)
    (note,) = console.notes_on_brackets(experiment, 4)
    assert "4 trials at once and brackets of 5, 9 stop few trials or none" in note
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
    ("before", "more", "line"),
    [
        (8, [], "resumed: 2 trials continue, 2 done, 2 still to come"),
        (8, ["--num-samples", "9"], "resumed: 2 trials continue, 2 done, 5 still to come"),
        (4, [], "resumed: 3 trials continue, 1 done, 2 still to come"),  # the completed one trains more epochs
    ],
)
def test_a_resumed_search_counts_its_trials(tmp_path, before, more, line):

    begun = {"event": "experiment_started", "max_epochs": before}
    suggested = [{"event": "trial_suggested", "trial": trial} for trial in ("00000", "00001", "00002", "00003")]
    statuses = {"00000": "completed", "00001": "pruned", "00002": "interrupted"}
    ended = [{"event": "trial_ended", "trial": trial, "status": status} for trial, status in statuses.items()]
    request = replace(request_of(tmp_path, *more), history=[begun, *suggested, *ended])
    assert console.heading(request)[-1] == line


@pytest.mark.parametrize(
    ("uv", "start"), [("/usr/bin/uv", "resume      uv run python -m"), ("", "resume      python -m")]
)
@pytest.mark.parametrize(
    ("state", "out_of_time", "more"),
    [
        ("finished", False, "--num-samples 12"),
        ("finished", True, "--time-budget 3600s"),
        ("interrupted", False, "resume"),
    ],
)
def test_the_last_lines_say_how_to_go_on_as_the_search_was_started(
    tmp_path, monkeypatch, state, out_of_time, more, uv, start
):
    monkeypatch.setenv("UV", uv)
    request = request_of(tmp_path)
    trial = TrialRecord("00003", {}, status="failed", reason="ValueError: wrong")
    experiment = replace(request.experiment, time_budget="30m")
    record = ExperimentRecord(experiment, {}, (trial,), state, out_of_time=out_of_time)
    outcome = SimpleNamespace(state=state, reason="the time budget of 30m is over")
    done = SimpleNamespace(request=request, record=record, answer=None, outcome=outcome)
    text = "\n".join(ending.ending(done))
    assert (
        "failed      trial 00003 in epoch 1: ValueError: wrong" in text
        and f"NOTE: {'out of time: ' * out_of_time}the time budget of 30m is over" in text
    )
    assert ("no answer yet" if state == "interrupted" else "no answer: no trial has a finite loss") in text
    start = start if state == "interrupted" else start.replace("resume", "extend")
    assert f"{start} tuner.run --resume mine --results {tmp_path}" in text and more in text


def test_a_command_names_the_project_where_uv_would_not_find_it(tmp_path, monkeypatch):
    clone, own = tmp_path / "a clone", tmp_path / "own"
    for folder in (clone / "examples", own):
        folder.mkdir(parents=True)
    monkeypatch.setenv("UV", "/usr/bin/uv")
    monkeypatch.setattr("sys.prefix", str(clone / ".venv"))
    monkeypatch.chdir(own)
    assert command("serve") == "uv run python -m tuner.serve"  # no project is beside the environment
    (clone / "pyproject.toml").touch()
    assert command("serve", "--port 1") == f"uv run --project '{clone}' python -m tuner.serve --port 1"
    monkeypatch.chdir(clone / "examples")
    assert command("serve") == "uv run python -m tuner.serve"
    monkeypatch.chdir(own)
    monkeypatch.setenv("UV", "")
    assert command("serve") == "python -m tuner.serve"


def test_a_new_search_writes_to_the_same_results():
    def again(results):
        return start_again(ExperimentRecord(Experiment(space="my.py", results=results), {}, (), "finished"), "--seed 1")

    assert again("/tmp/my results") == "python -m tuner.run --space my.py --results '/tmp/my results' --seed 1"
    assert again("results") == "python -m tuner.run --space my.py --seed 1"


def test_the_readme_of_the_best_trial_loads_it_from_anywhere(tmp_path, monkeypatch):
    staged = tmp_path / "staged"
    staged.mkdir()
    (staged / MODEL).touch()
    monkeypatch.chdir(tmp_path)
    text = readme(Path("own/s12"), "my.py", staged, 3, ended=True)
    assert "# The best trial of s12" in text and f"load_best('{tmp_path}/own/s12')" in text


def test_a_mode_that_contradicts_the_metric_is_noted_beside_the_answer(tmp_path):
    trial = TrialRecord("00003", {"lr": 0.1}, status="completed", reports=(Report(1, {"accuracy": 0.5}, None, 1.0),))
    answer, outcome = Answer(trial, trial.reports[0], None), SimpleNamespace(state="finished", reason="")
    for mode, noted in (("min", True), ("max", False)):
        request = request_of(tmp_path, "--metric", "accuracy", "--mode", mode)
        record = ExperimentRecord(request.experiment, {}, (trial,), "finished")
        lines = ending.ending(SimpleNamespace(request=request, record=record, answer=answer, outcome=outcome))
        (place,) = [number for number, line in enumerate(lines) if line.startswith("validation  accuracy 0.5")]
        assert lines[place + 1].startswith("NOTE: mode is min, so a smaller accuracy counts as better") == noted


def test_memory_that_grew_is_told_of_the_trial_where_it_grew_fastest():
    def grown(number, *sizes):
        reports = tuple(
            Report(i + 1, {"rss_growth_bytes": size} if size else {}, None, 0.0) for i, size in enumerate(sizes)
        )
        return TrialRecord(f"{number:05d}", {}, reports=reports)

    assert ending.growing([grown(0, 0, 0), TrialRecord("00001", {})]) == []
    (text,) = ending.growing([grown(0, 0, 2 << 20), grown(1, 0, 5 << 20, 3 << 20), grown(2, 0)])
    assert text.startswith(
        "NOTE: resident memory grew from epoch to epoch in 2 of 2 long trials, by 5.0 MiB per epoch in trial 00001"
    )
    steady = [grown(number, *[0] * 8) for number in (3, 4)]
    assert ending.growing([grown(0, 0, 2 << 20), grown(1, 5 << 20), *steady]) == []  # half of them: the allocator
    assert ending.growing([grown(0, 0, 2 << 20), grown(1, 5 << 20), steady[0]])


def test_failures_are_grouped_by_place_and_the_newest_come_first(tmp_path):
    def failed(number, epoch, why, line):
        reports = tuple(Report(e, {}, None, 0.0) for e in range(1, epoch))
        reason = f"ValueError: {why} (/home/me/space.py, line {line})"
        (folder := tmp_path / "ray" / f"{number:05d}").mkdir(parents=True)
        (folder / "error.txt").write_text("Traceback")
        return TrialRecord(
            f"{number:05d}", {}, status="failed", reason=reason, reports=reports, changed_at=number, order=number
        )

    old = [failed(n, 2, f"width {n}", 12) for n in range(7)]
    new = [failed(7, 1, "no", 30), failed(8, 4, "no", 30), TrialRecord("00009", {}, status="pruned")]
    first, second = ending.failures([*old, *new], tmp_path)
    assert first == (
        "failed      2 trials, 00008 the last, in epochs 1 to 4: ValueError: no (/home/me/space.py, line 30); "
        f"full traceback: {tmp_path}/ray/00008/error.txt"
    )
    assert second.startswith("failed      7 trials, 00006 the last, in epoch 2: ValueError: width 6 ")
    many = [failed(n, 1, "no", n) for n in range(10, 20)]
    assert ending.failures(many, tmp_path)[-1] == "... and 5 other errors, in trials.csv"


def test_failed_trials_are_tried_again_after_the_code_was_changed(tmp_path):

    request = request_of(tmp_path)
    sha256 = request.loaded_space.sha256
    failed = [
        {"event": "trial_suggested", "trial": "00000"},
        {"event": "trial_failed", "trial": "00000", "kind": "user"},
        {"event": "trial_ended", "trial": "00000", "status": "failed"},
    ]
    for before, line in [
        (sha256, "resumed: 0 trials continue, 1 done, 5 still to come"),
        ("other", "resumed: 1 trial continues (1 that had failed, as the code has changed), 0 done, 5 still to come"),
    ]:
        begun = {"event": "experiment_started", "max_epochs": 8, "space_sha256": before}
        assert console.heading(replace(request, history=[begun, *failed]))[-1] == line
