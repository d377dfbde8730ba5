"""The table of a running search, and its progress line."""

import math
import shutil
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from following import following, heard
from ray import tune

from tuner.engine.controller.stopper import SearchStopper
from tuner.errors import RequestError
from tuner.spec.experiment import Experiment
from tuner.tuning.output import progress

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


def line(statuses, num_settings, *, took, ended=(), running=(), paused=0, reports=(), refused=False, **times):
    """A progress line; `ended` and `running` have the epochs of such trials, and paused trials trained one."""
    tracker = following(Experiment())
    for trial_id, value in reports:
        heard(tracker, {"event": "report", "trial": trial_id, "epoch": 1, "metrics": {"loss": value}})
    for number, epochs in enumerate([*ended, *running, *[1] * paused]):
        heard(tracker, {"event": "trial_started", "trial": (trial_id := f"trained-{number}")})
        for epoch in range(1, epochs + 1):
            heard(tracker, {"event": "report", "trial": trial_id, "epoch": epoch, "metrics": {}})
        if number < len(ended):
            heard(tracker, {"event": "trial_ended", "trial": trial_id, "status": "pruned", "reason": ""})
        elif number >= len(ended) + len(running):
            heard(tracker, {"event": "decision", "trial": trial_id, "epoch": 1, "action": "pause"})
    tracker.began = time.monotonic() - took
    stopper = SearchStopper()
    if refused:
        stopper.refuse(RequestError("it reports no loss"))
    return progress.progress_line(Counter(statuses), tracker, Experiment(), num_settings, stopper, **times)


def test_the_progress_line_counts_trials_and_the_time_that_is_left():
    text = line({"completed": 1, "pruned": 1, "failed": 1, "running": 1, "paused": 1}, 10, took=30,
                ended=[1, 1, 1], reports=[("00000", 0.5), ("00001", 0.9)])  # fmt: skip
    counts = "3/10 done: 1 pruned, 1 completed, 1 failed; 1 running, 1 paused"
    assert text == f"{counts} | best loss 0.5 (trial 00000) | 30 s, about 42 s left"
    counts = {"pruned": 2, "running": 2}
    text = line(counts, 6, took=32, ended=[3, 1], running=[2, 2])  # 4 s an epoch, 4 epochs are left
    assert text.endswith("32 s, about 16 s left")
    assert line({"running": 2}, 4, took=32, running=[2, 2]).endswith("| 32 s")  # unknown
    assert line({"running": 2}, 4, took=32, before_s=100).endswith("| 32 s (all sessions: 2 min 12 s)")


def test_a_refused_search_has_no_best_value_and_trials_that_never_started_are_not_interrupted(monkeypatch, capsys):
    assert line({"failed": 1}, 10, took=0, reports=[("00000", 0.5)], refused=True) == "1/10 done: 1 failed | 0 s"
    tracker = following(Experiment())
    for event, number in (("trial_suggested", 0), ("trial_suggested", 1), ("trial_started", 1)):
        heard(tracker, {"event": event, "trial": f"{number:05}"})
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    table = progress.ProgressTable(Experiment(), lambda: 10, tracker, SearchStopper(), lambda *_: "", PARAMS)
    table.report([trial(0, "TERMINATED", 0), trial(1, "TERMINATED", 0)], done=True)
    assert "0/10 done; 1 interrupted, 1 suggested" in capsys.readouterr().out


def table_of(monkeypatch, capsys, width, *, in_place=True, done=False, table="fit"):
    """What a report of TRIALS prints; each trial had another value, 0.75, before its last one."""
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: SimpleNamespace(columns=width, lines=50))
    monkeypatch.setattr("sys.stdout.isatty", lambda: in_place, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    ended = {"00000": "pruned", "00001": "completed", "00002": "failed"}
    history = [{"event": "trial_ended", "trial": t, "status": s, "reason": "why"} for t, s in ended.items()]
    tracker = following(Experiment(), history)
    for each in TRIALS:
        if each.trial_id not in tracker.state.trials:
            heard(tracker, {"event": "trial_started", "trial": each.trial_id})
        for metrics in ({"loss": 0.75, "accuracy": 0.75}, each.last_result):
            heard(tracker, {"event": "report", "trial": each.trial_id, "epoch": 1, "metrics": metrics})
    shown = progress.ProgressTable(Experiment(), lambda: 10, tracker, SearchStopper(), lambda *_: "", PARAMS, table)
    shown.report(TRIALS, done)
    return capsys.readouterr().out.removeprefix("\r\x1b[J").splitlines()


TRIALS = [
    trial(0, "TERMINATED", 2), trial(1, "TERMINATED", 10, 0.123456), trial(2, "ERROR", 1), trial(3),
    trial(4, "PAUSED", 4, optimizer={"name": "sgd", "momentum": 0.9}), trial(5, "PENDING", 0), trial(6, "TERMINATED"),
]  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_the_table_fits_the_terminal_and_has_first_what_matters(monkeypatch, capsys, width):
    lines = table_of(monkeypatch, capsys, width)
    assert max(map(len, lines)) <= width
    header = [name.strip() for name in lines[1].strip("|").split("|")]
    params = ["lr", "optimizer/name", "optimizer/momentum"]
    columns = ["trial", "status", "best_loss", "last_loss", "epochs", *params, "last_accuracy"]
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


def test_the_wide_table_has_all_columns_and_a_pipe_gets_it_at_the_end_only(monkeypatch, capsys):
    text = "\n".join(table_of(monkeypatch, capsys, 40, table="wide"))
    assert "optimizer/momentum" in text and "accuracy" in text and "0.012346" in text
    assert "layers" not in text and "{" not in text and "0x" not in text
    assert len(table_of(monkeypatch, capsys, 40, in_place=False)) == 1
    lines = table_of(monkeypatch, capsys, 40, in_place=False, done=True)
    assert "optimizer/momentum" in lines[1] and "accuracy" in lines[1] and lines[-1].startswith("3/10 done")


def test_a_last_report_of_the_searched_metric_alone_leaves_the_compared_one_in_the_table():
    experiment = Experiment(metric="accuracy", mode="max", prune_by="loss")
    tracker, ended = following(experiment), trial(0, "TERMINATED", 2)
    for epoch, metrics in enumerate([{"loss": 0.25}, {"accuracy": 0.5}], 1):
        heard(tracker, {"event": "report", "trial": "00000", "epoch": epoch, "metrics": metrics})
    ended.last_result = {"training_iteration": 2, "accuracy": 0.5}
    shown = progress.ProgressTable(experiment, lambda: 1, tracker, SearchStopper(), lambda *_: "", {})
    cells = dict(zip(shown._header, shown._cells(ended), strict=True))
    assert (cells["last_loss"], cells["epochs"]) == ("0.25", "1")  # it ends no epoch
    heard(tracker, {"event": "report", "trial": "00000", "epoch": 2, "metrics": {"accuracy": 0.5}})  # after a restart
    assert tracker.state.trials["00000"].length == 1


def test_a_pipe_gets_a_line_for_each_trial_that_ends():
    tracker = following(Experiment())
    diverged = {"trial": "00003", "reason": "loss is nan at epoch 2: the training diverged"}
    for event in (
        {"event": "report", "trial": "00000", "epoch": 2, "metrics": {"loss": 0.51234}},
        {"event": "trial_ended", "trial": "00000", "status": "pruned", "reason": ""},
        {"event": "trial_ended", "trial": "00001", "status": "failed", "reason": "KeyError: 'x' (/me.py, line 3)"},
        {"event": "report", "trial": "00002", "epoch": 1, "metrics": {"acc": 0.5}},
        {"event": "decision", "trial": "00002", "epoch": 1, "action": "stop"},
        {"event": "trial_ended", "trial": "00002", "status": "failed", "reason": "the trial reports no 'loss'"},
        {"event": "report", "trial": "00003", "epoch": 2, "metrics": {"loss": math.nan}},
        {"event": "decision", "epoch": 2, "action": "stop", **diverged},
        {"event": "trial_ended", "status": "pruned", **diverged},
    ):
        heard(tracker, event)
    assert [progress.end_line(trial_id, tracker, "loss") for trial_id in tracker.state.trials] == [
        "trial 00000 pruned after epoch 2, loss 0.51234",
        "trial 00001 failed in epoch 1: KeyError: 'x' (/me.py, line 3)",
        "trial 00002 failed in epoch 1: the trial reports no 'loss'",
        "trial 00003 diverged after epoch 2: loss is nan",
    ]


def test_the_live_table_keeps_its_own_control_sequences_alone(capsys):
    e, waits = Experiment(), lambda *_: "wait\x1b[2J"
    shown = progress.ProgressTable(e, lambda: 1, following(e), SearchStopper(), waits, PARAMS)
    shown._in_place = True
    for _ in range(2):
        shown.report([trial(0, lr="e\x9b[2J\r")], False)
    output = capsys.readouterr().out
    assert output.count("\x1b") == 3 and output.count("\r") == 2 and not set("\x07\x9b\u202e") & set(output)


def test_a_log_says_why_trials_wait(capsys):
    e, waits = Experiment(), lambda *_: "1 trial waits for a node"
    progress.ProgressTable(e, lambda: 1, following(e), SearchStopper(), waits, {}).report([], False)
    assert capsys.readouterr().out.splitlines() == ["1 trial waits for a node", "0/1 done | 0 s"]


def test_a_lost_worker_is_said_in_one_line_and_an_error_once(capsys):
    tracker = following(Experiment())
    table = progress.ProgressTable(Experiment(), lambda: 3, tracker, SearchStopper(), lambda *_: "", {})
    heard(tracker, {"event": "report", "trial": "00002", "epoch": 2, "metrics": {"loss": 1.0}})
    lost = {"event": "trial_failed", "trial": "00002", "kind": "worker_lost", "error": "its worker was killed"}
    heard(tracker, {**lost, "will_retry": True, "from_epoch": 2})
    heard(tracker, {**lost, "will_retry": True, "from_epoch": 0})
    for trial in ("00000", "00001"):
        heard(tracker, {"event": "trial_ended", "trial": trial, "status": "failed", "reason": f"no {trial}"})
    table._in_place, table._lines = True, 3  # as after a table that is redrawn in place
    heard(tracker, {**lost, "will_retry": True, "from_epoch": 2})
    start = "trial 00002 failed in epoch 3: its worker was killed; another worker "
    assert capsys.readouterr().out.split("\n") == [
        f"{start}continues it after epoch 2",
        f"{start}starts it again, as it saved no checkpoint",
        "trial 00000 failed in epoch 1: no 00000",
        "trial 00001 failed in epoch 1: as trial 00000",
        f"\r\x1b[3A\x1b[J{start}continues it after epoch 2",
        "",
    ]


def test_rays_lines_about_a_dead_worker_or_raylet_are_dropped(monkeypatch):
    worker = pytest.importorskip("ray._private.worker")
    from tuner.engine.local.alone import no_reports_of_the_dead

    shown = []
    monkeypatch.setattr(worker, "print_to_stdstream", lambda data, ignore_prefix: shown.append(data["lines"][0]))
    with no_reports_of_the_dead():
        for line in ("A worker died or was killed while executing a task", "Raylet is terminated.", "disk is full"):
            worker.print_to_stdstream({"lines": [line], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    assert shown == ["disk is full"]
