"""The journal's events folded into records, and the best of them."""

import pytest
from journals import folding

from tests.serve.conftest import begin
from tuner.record.checkpoints import SavedCheckpoints
from tuner.record.results import load
from tuner.record.storage.lock import only_driver
from tuner.spec.constraints import aim_of

START = {"event": "trial_started", "config": {"lr": 0.1}, "resources": {"CPU": 1}, "node": "n"}


def report(trial, epoch, time, checkpoint=None, **metrics):
    saved = {"checkpoint": checkpoint} if checkpoint else {}
    return {"event": "report", "trial": trial, "epoch": epoch, "time": time, "metrics": metrics, **saved}


def decided(trial, time, action, reason):
    fields = {"epoch": 1, "rung": 1, "bracket": 0, "value": 1.0, "cutoff": None, "recorded": 0}
    return {"event": "decision", "trial": trial, "time": time, "action": action, "reason": reason, **fields}


@pytest.mark.parametrize("end", ["kill", "interruption", "finish"])
def test_a_paused_trial_waits_however_its_session_ended(tmp_path, end):
    journal, folder = begin(tmp_path), tmp_path / "demo"
    journal.write("trial_started", "0", config={}, resources={}, node="n")
    pause = decided("0", 2, "pause", "waits at rung 1")
    journal.write("decision", "0", **{name: pause[name] for name in pause.keys() - {"event", "trial", "time"}})
    journal.write("trial_started", "1", config={}, resources={}, node="n")
    if end == "interruption":
        journal.write("trial_ended", "1", status="interrupted", reason="interrupted by SIGINT")
    if end == "finish":
        journal.write("experiment_finished", state="finished", reason="")
    journal.close()
    with only_driver(folder):
        pass
    paused, started = load(folder).trials
    assert (paused.status, paused.reason) == ("paused", "waits at rung 1")
    assert started.status == ("running" if end == "finish" else "interrupted")


def test_the_time_of_an_epoch_leaves_out_starts_pauses_and_restarts():
    events = [
        {**START, "trial": "0", "time": 0},
        report("0", 1, 100, loss=1.0),  # the start of the worker and the imports
        report("0", 2, 102, loss=1.0),
        decided("0", 102, "pause", "waits at rung 2"),
        {**START, "trial": "0", "time": 200},
        report("0", 3, 250, loss=1.0),
        report("0", 4, 256, loss=1.0),
        {"event": "trial_failed", "trial": "0", "time": 300, "error": "E"},
        {**START, "trial": "0", "time": 400},
        report("0", 4, 440, loss=1.0),
        report("0", 5, 441, loss=1.0),
        {"event": "trial_ended", "trial": "0", "time": 500, "status": "completed", "reason": "r"},
    ]
    known = [folding(events[:n]).records()[0].epoch_seconds for n in range(1, len(events) + 1)]
    assert known == [None, None, 2, 2, 2, 2, 4, 4, 4, 4, 3, 3]


def test_only_saved_epochs_count_where_a_checkpoint_is_there(tmp_path):
    (tmp_path / "ray/0/a").mkdir(parents=True)
    events = [
        report("0", 1, 1, "ray/0/a", loss=2.0),
        report("0", 2, 2, "ray/0/gone", loss=1.0),
        report("0", 3, 3, loss=0.5),
    ]
    (record,) = folding(events).records()
    assert record.best(aim_of("loss", "min", ())).epoch == 3
    assert record.best_saved(aim_of("loss", "min", ()), SavedCheckpoints(tmp_path)).epoch == 1


def test_a_bounded_number_of_checkpoints_is_looked_for_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.record.checkpoints.MOST_LOOKS", 3)
    (tmp_path / "one" / "a").mkdir(parents=True)
    saved = SavedCheckpoints(tmp_path)
    assert ["one/a" in saved, "one/b" in saved, "one/a" in saved, "one/a" in saved] == [True, False, True, False]
