"""The table of a running search, and its progress line."""

import math
import shutil
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from ray import tune

from tuner.engine.controller.halt import Halt
from tuner.errors import RequestError
from tuner.errors.terminal import SGR
from tuner.spec.experiment import Experiment
from tuner.tuning.output import progress, table
from tuner.tuning.tracker import Tracker
from tuner.views.labels import figures

PARAMS = {
    "lr": tune.loguniform(1e-4, 1e-1),
    "optimizer": tune.choice([{"name": "sgd", "momentum": tune.uniform(0, 1)}, {"name": "adam"}]),
    "layers": 3,
}


def trial(number, status="RUNNING", epoch=1, loss=1.0, **config):
    return SimpleNamespace(
        trial_id=f"{number:05d}", status=status, config={"lr": 0.012345678, "optimizer": {"name": "adam"}, **config},
        last_result={"training_iteration": epoch, "loss": loss, "accuracy": 0.5} if epoch else {},
        is_finished=lambda: status in ("TERMINATED", "ERROR"),
    )  # fmt: skip


def tracker_of(experiment, **statuses):
    history = [{"event": "trial_ended", "trial": t, "status": s, "reason": "why"} for t, s in statuses.items()]
    return Tracker(experiment, history)


def trained(tracker, trial_id, epochs):
    """A trial of this session reports so many epochs."""
    tracker.hear({"event": "trial_started", "trial": trial_id})
    for epoch in range(1, epochs + 1):
        tracker.hear({"event": "report", "trial": trial_id, "epoch": epoch, "metrics": {}})


def line(
    statuses, experiment, num_settings, *, took=0.0, ended=(), running=(), paused=0, left_s=None, reports=(),
    refused=False,
):  # fmt: skip
    """A progress line; `ended` and `running` have the epochs of such trials, and paused trials trained one."""
    tracker = Tracker(experiment)
    for trial_id, value in reports:
        tracker.hear({"event": "report", "trial": trial_id, "epoch": 1, "metrics": {"loss": value}})
    for number, epochs in enumerate([*ended, *running, *[1] * paused]):
        trained(tracker, trial_id := f"trained-{number}", epochs)
        if number < len(ended):
            tracker.hear({"event": "trial_ended", "trial": trial_id, "status": "pruned", "reason": ""})
        elif number >= len(ended) + len(running):
            tracker.hear({"event": "decision", "trial": trial_id, "epoch": 1, "action": "pause"})
    tracker.began = tracker.started = time.monotonic() - took
    halt = Halt("", left_s)
    if refused:
        halt.refuse(RequestError("it reports no loss"))
    return progress.progress_line(Counter(statuses), tracker, experiment, num_settings, halt)


def test_the_progress_line_counts_what_is_done_running_and_failed():
    text = line({"completed": 1, "pruned": 1, "failed": 1, "running": 1, "paused": 1}, Experiment(), 10, took=30,
                ended=[1, 1, 1], reports=[("00000", 0.5), ("00001", 0.9)])  # fmt: skip
    counts = "3/10 done: 1 pruned, 1 completed, 1 failed; 1 running, 1 paused"
    assert text == f"{counts} | best loss 0.5 (trial 00000) | 30 s, about 42 s left"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456, "0.12346"), (726855679.5, "726860000"), (-1e300, "-1e+300")],
)
def test_a_value_has_five_digits_in_the_lines_and_in_the_answer(value, text):
    assert f"| best loss {text} (trial 00000) |" in line({"running": 1}, Experiment(), 1, reports=[("00000", value)])
    assert figures({"loss": value}) == f"loss {text}"


def test_a_refused_search_has_no_best_value_and_trials_that_never_started_are_not_interrupted(monkeypatch, capsys):
    assert line({"failed": 1}, Experiment(), 10, reports=[("00000", 0.5)], refused=True) == "1/10 done: 1 failed | 0 s"
    tracker = Tracker(Experiment())
    for event, number in (("trial_suggested", 0), ("trial_suggested", 1), ("trial_started", 1)):
        tracker.hear({"event": event, "trial": f"{number:05}"})
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    table = progress.ProgressTable(Experiment(), 10, tracker, Halt(), lambda *_: "", PARAMS)
    table.report([trial(0, "TERMINATED", 0), trial(1, "TERMINATED", 0)], done=True)
    assert "0/10 done; 1 interrupted, 1 suggested" in capsys.readouterr().out


def test_after_a_resume_the_time_left_is_estimated_from_this_session():
    assert line({"completed": 8, "running": 1}, Experiment(), 10, took=1).endswith("| 1 s")
    assert line({"completed": 9, "running": 1}, Experiment(), 10, took=20, ended=[1]).endswith("20 s, about 20 s left")


@pytest.mark.parametrize(("scheduler", "left"), [("asha-promotion", "14 s"), ("hyperband", "1 m 2 s")])
def test_the_time_left_counts_no_paused_trial_where_most_never_continue(scheduler, left):
    # 9 epochs in 18 s. Promoting ASHA: 5 trials settled after 1.6 epochs on average, 5 are open, and one of these has
    # trained 1 epoch. HyperBand: one ended after 4 epochs, 9 are open, and 5 of these have trained 1 epoch.
    text = line({"completed": 1, "paused": 4, "running": 1}, Experiment(searcher="random", scheduler=scheduler), 10,
                took=18, ended=[4], running=[1], paused=4)  # fmt: skip
    assert text.endswith(f"about {left} left")


def test_the_time_left_counts_what_running_trials_have_trained():
    counts = {"pruned": 2, "running": 2}
    text = line(counts, Experiment(), 6, took=32, ended=[3, 1], running=[2, 2])  # 4 s an epoch, 4 epochs are left
    assert text.endswith("32 s, about 16 s left")
    assert line(counts, Experiment(), 4, took=32, ended=[3, 1], running=[2, 2]).endswith("| 32 s")  # unknown
    assert line({"running": 2}, Experiment(), 4, took=32, running=[2, 2]).endswith("| 32 s")


def test_the_time_left_does_not_count_the_start_before_the_first_trial(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    tracker = Tracker(Experiment())
    now += 8
    tracker.hear({"event": "trial_started", "trial": "00000"})
    now += 2
    tracker.hear({"event": "report", "trial": "00000", "epoch": 1, "metrics": {}})
    tracker.hear({"event": "trial_ended", "trial": "00000", "status": "pruned", "reason": "why"})
    text = progress.progress_line(Counter({"pruned": 1}), tracker, Experiment(), 10, Halt())
    assert text.endswith("| 10 s, about 18 s left")


def table_of(
    monkeypatch, capsys, trials, width=80, *, height=50, in_place=True, done=False, table="fit", metric="loss",
    term="xterm", no_color="1", mode="min",
):  # fmt: skip
    """What a report of these trials prints; each trial had another value, 0.75, before its last one."""
    experiment = Experiment(metric=metric, mode=mode)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: SimpleNamespace(columns=width, lines=height))
    monkeypatch.setattr("sys.stdout.isatty", lambda: in_place, raising=False)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", no_color)
    tracker = tracker_of(experiment, **{"00000": "pruned", "00001": "completed", "00002": "failed"})
    for each in trials:
        if each.trial_id not in tracker.trials:
            tracker.hear({"event": "trial_started", "trial": each.trial_id})
        for metrics in ({"loss": 0.75, "accuracy": 0.75}, each.last_result):
            tracker.hear({"event": "report", "trial": each.trial_id, "epoch": 1, "metrics": metrics})
    shown = progress.ProgressTable(experiment, 10, tracker, Halt(), lambda *_: "", PARAMS, table)
    shown.report(trials, done)
    return capsys.readouterr().out.removeprefix("\r\x1b[J").splitlines()


TRIALS = [
    trial(0, "TERMINATED", 2), trial(1, "TERMINATED", 10, 0.123456), trial(2, "ERROR", 1), trial(3),
    trial(4, "PAUSED", 4, optimizer={"name": "sgd", "momentum": 0.9}), trial(5, "PENDING", 0), trial(6, "TERMINATED"),
]  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_the_table_fits_the_terminal_and_has_first_what_matters(monkeypatch, capsys, width):
    lines = table_of(monkeypatch, capsys, TRIALS, width)
    assert max(map(len, lines)) <= width
    header = [name.strip() for name in lines[1].strip("|").split("|")]
    params = ["lr", "optimizer/name", "optimizer/momentum"]
    columns = ["trial", "status", "epoch", "best_loss", "last_loss", *params, "last_accuracy"]
    assert header == columns[: {40: 3, 60: 5, 80: 6, 160: 9}[width]]
    note = " ".join("".join(f" {line.strip()}" for line in lines).partition("not shown: ")[2].split())
    left_out = ", ".join(columns[len(header) :])
    assert note.startswith(f"{left_out}; --table wide shows all columns " if left_out else "")
    assert bool(note) == bool(left_out)
    rows = {cells[0]: cells[1:] for row in lines if len(cells := [c.strip() for c in row.strip("|").split("|")]) > 2}
    statuses = {t: cells[0] for t, cells in rows.items() if t.isdecimal()}
    assert list(statuses.values()).count("running") == 1
    assert statuses["00000"] == "pruned" and statuses["00001"] == "completed" and statuses["00002"] == "failed"
    assert statuses["00004"] == "paused" and statuses["00005"] == "pending" and statuses["00006"] == "interrupted"


@pytest.mark.parametrize(("mode", "best"), [("min", "0.5"), ("max", "0.75")])
def test_the_table_has_the_best_and_the_last_value_by_the_names_of_trials_csv(monkeypatch, capsys, mode, best):
    lines = table_of(monkeypatch, capsys, [trial(3, loss=1.0)], 160, metric="accuracy", mode=mode)
    header, row = ([cell.strip() for cell in lines[number].strip("|").split("|")] for number in (1, 3))
    assert header == ["trial", "status", "epoch", "best_accuracy", "last_accuracy", "lr", "optimizer/name", "last_loss"]
    assert dict(zip(header, row, strict=True)) == {
        "trial": "00003", "status": "running", "epoch": "1", "best_accuracy": best, "last_accuracy": "0.5",
        "lr": "0.012346", "optimizer/name": "adam", "last_loss": "1",
    }  # fmt: skip


@pytest.mark.parametrize(("height", "num_shown"), [(50, 20), (24, 14), (5, 1)])
def test_the_table_fits_the_height_and_says_how_many_trials_it_leaves_out(monkeypatch, capsys, height, num_shown):
    lines = table_of(monkeypatch, capsys, [trial(number, "PAUSED") for number in range(30)], height=height)
    (note,) = [line for line in lines if "more trials" in line]
    assert note == f"not shown: {30 - num_shown} more trials; trials.csv has all after the search"
    assert sum(line.startswith("| 000") for line in lines) == num_shown
    assert len(lines) <= max(height - 1, 8)


def test_the_table_is_coloured_in_a_terminal_with_colours_only(monkeypatch, capsys):
    plain = table_of(monkeypatch, capsys, TRIALS, done=True)
    lines = table_of(monkeypatch, capsys, TRIALS, done=True, no_color="")
    (row,) = [line for line in lines if "completed" in line and "|" in line and "00001" in line and "done" not in line]
    assert row.startswith("| \x1b[1;32m00001\x1b[0m | \x1b[32mcompleted\x1b[0m")  # the best trial
    assert "\x1b[1;32mbest loss 0.12346 (trial 00001)\x1b[0m" in lines[-1]
    assert [SGR.sub("", line) for line in lines] == plain
    for options in ({"no_color": "1"}, {"no_color": "", "term": "dumb"}, {"no_color": "", "in_place": False}):
        assert "\x1b" not in "".join(table_of(monkeypatch, capsys, TRIALS, done=True, **options))


def test_a_dumb_terminal_gets_a_table_of_its_width_at_the_end_only(monkeypatch, capsys):
    assert len(table_of(monkeypatch, capsys, TRIALS, term="dumb")) == 2  # the progress line
    lines = table_of(monkeypatch, capsys, TRIALS, term="dumb", done=True)
    assert max(map(len, lines)) <= 80 and "not shown: " in "".join(lines)


def test_the_wide_table_has_all_columns_and_no_object(monkeypatch, capsys):
    text = "\n".join(table_of(monkeypatch, capsys, TRIALS, 40, table="wide"))
    assert "optimizer/momentum" in text and "accuracy" in text and "0.012346" in text
    assert "layers" not in text and "{" not in text and "0x" not in text


def test_no_table_is_printed_if_none_is_wanted(monkeypatch, capsys):
    lines = table_of(monkeypatch, capsys, TRIALS, 160, table="off")
    assert len(lines) == 1 and lines[0].startswith("3/10 done: 1 pruned, 1 completed, 1 failed; 1 running, 1 paused")


def test_in_a_pipe_the_table_is_printed_at_the_end_only(monkeypatch, capsys):
    assert len(table_of(monkeypatch, capsys, TRIALS, 40, in_place=False)) == 1
    lines = table_of(monkeypatch, capsys, TRIALS, 40, in_place=False, done=True)
    assert "optimizer/momentum" in lines[1] and "accuracy" in lines[1] and lines[-1].startswith("3/10 done")


def test_a_pipe_gets_a_line_for_each_trial_that_ends():
    tracker = Tracker(Experiment())
    for event in (
        {"event": "report", "trial": "00000", "epoch": 2, "metrics": {"loss": 0.51234}},
        {"event": "trial_ended", "trial": "00000", "status": "pruned", "reason": ""},
        {"event": "trial_ended", "trial": "00001", "status": "failed", "reason": "KeyError: 'x' (/me.py, line 3)"},
        {"event": "report", "trial": "00002", "epoch": 1, "metrics": {"acc": 0.5}},
        {"event": "decision", "trial": "00002", "epoch": 1, "action": "stop"},
        {"event": "trial_ended", "trial": "00002", "status": "failed", "reason": "the trial reports no 'loss'"},
        *diverging("00003"),
    ):
        tracker.hear(event)
    assert progress.end_line("00000", tracker, "loss") == "trial 00000 pruned after epoch 2, loss 0.51234"
    text = "trial 00001 failed in epoch 1: KeyError: 'x' (/me.py, line 3)"
    assert progress.end_line("00001", tracker, "loss") == text
    text = "trial 00002 failed in epoch 1: the trial reports no 'loss'"
    assert progress.end_line("00002", tracker, "loss") == text
    assert progress.end_line("00003", tracker, "loss") == "trial 00003 diverged after epoch 2: loss is nan"


def diverging(trial_id):
    """The events of a trial whose loss is NaN at epoch 2."""
    yield {"event": "report", "trial": trial_id, "epoch": 1, "metrics": {"loss": 0.5}}
    yield {"event": "report", "trial": trial_id, "epoch": 2, "metrics": {"loss": math.nan}}
    reason = "loss is nan at epoch 2: the training diverged"
    yield {"event": "decision", "trial": trial_id, "epoch": 2, "action": "stop", "reason": reason}
    yield {"event": "trial_ended", "trial": trial_id, "status": "pruned", "reason": reason}


def test_a_diverged_trial_is_not_called_pruned(capsys):
    tracker = Tracker(Experiment(), [*diverging("00000"), *diverging("00001")])
    shown = progress.ProgressTable(Experiment(), 2, tracker, Halt(), lambda *_: "", {})
    shown.report([trial(0, "TERMINATED", 2, math.nan), trial(1, "TERMINATED", 2, math.nan)], True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in lines if line.startswith("| 0")] == ["diverged", "diverged"]
    assert lines[-1].startswith("2/2 done: 2 diverged | best loss 0.5 (trial 00000)")


def test_the_table_is_redrawn_from_the_start_of_its_line(capsys):
    """A terminal echoes `^C`, so that the cursor stands behind it."""
    shown = progress.ProgressTable(Experiment(), 1, Tracker(Experiment()), Halt(), lambda *_: "", {})
    shown._in_place = True
    starts = []
    for _ in range(2):
        shown.report([], False)
        starts.append(capsys.readouterr().out.partition("0/1 done")[0])
    assert starts == ["\r\x1b[J", "\r\x1b[1A\x1b[J"]


def test_numbers_align_right_and_columns_that_do_not_fit_are_named():
    rows = [["0", "a", "0.005057", ""], ["10", "", "0.00021957", ""]]
    columns = table.columns_of(["n", "loc", "lr", "never"], rows)
    whole = ["+----+-----+------------+", "|  n | loc |         lr |", "|----+-----+------------|",
             "|  0 | a   |   0.005057 |", "| 10 |     | 0.00021957 |", "+----+-----+------------+"]  # fmt: skip
    assert table.narrowed(columns, 25) == table.drawn(columns) == whole
    note = ["not shown: lr; --table", "  wide shows all columns"]
    assert table.narrowed(columns, 24) == [*(line[:11] + line[0] for line in whole), *note]
    assert table.drawn([]) == table.columns_of(["n"], []) == []


def test_the_live_table_keeps_its_own_control_sequences_alone(capsys):
    shown = progress.ProgressTable(Experiment(), 1, Tracker(Experiment()), Halt(), lambda *_: "wait\x1b[2J", PARAMS)
    shown._in_place = True
    for _ in range(2):
        shown.report([trial(0, lr="e\x9b[2J\r")], False)
    output = capsys.readouterr().out
    assert output.count("\x1b") == 3 and output.count("\r") == 2 and not set("\x07\x9b\u202e") & set(output)


def test_a_lost_worker_is_said_in_one_line_and_an_error_once(capsys):
    tracker = Tracker(Experiment())
    table = progress.ProgressTable(Experiment(), 3, tracker, Halt(), lambda *_: "", {})
    tracker.hear({"event": "report", "trial": "00002", "epoch": 2, "metrics": {"loss": 1.0}})
    lost = {"event": "trial_failed", "trial": "00002", "kind": "worker_lost", "error": "its worker was killed"}
    tracker.hear({**lost, "will_retry": True, "from_epoch": 2})
    tracker.hear({**lost, "will_retry": True, "from_epoch": 0})
    for trial in ("00000", "00001"):
        tracker.hear({"event": "trial_ended", "trial": trial, "status": "failed", "reason": f"no {trial}"})
    table._in_place, table._lines = True, 3  # as after a table that is redrawn in place
    tracker.hear({**lost, "will_retry": True, "from_epoch": 2})
    start = "trial 00002 failed in epoch 3: its worker was killed; another worker "
    assert capsys.readouterr().out.split("\n") == [
        f"{start}continues it after epoch 2",
        f"{start}starts it again, as it saved no checkpoint",
        "trial 00000 failed in epoch 1: no 00000",
        "trial 00001 failed in epoch 1: as trial 00000",
        f"\r\x1b[3A\x1b[J{start}continues it after epoch 2",
        "",
    ]


def test_rays_line_about_a_dead_worker_is_dropped(monkeypatch):
    worker = pytest.importorskip("ray._private.worker")
    from tuner.engine.local.ray_log import no_reports_of_dead_workers

    shown = []
    monkeypatch.setattr(worker, "print_to_stdstream", lambda data, ignore_prefix: shown.append(data["lines"][0]))
    with no_reports_of_dead_workers():
        for line in ("A worker died or was killed while executing a task by an unexpected error", "disk is full"):
            worker.print_to_stdstream({"lines": [line], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    assert shown == ["disk is full"]
