"""A resume restores each trial from the journal's events: which continue, which wait, and which have ended."""

import itertools
import math

import pytest
import torch
from by_hand import Search
from journals import read

from tuner.errors import RequestError


def event(name, trial=None, /, **fields):
    return {"time": 0.0, "event": name, **({} if trial is None else {"trial": f"{trial:05d}"}), **fields}


def started(trial):
    return [event("trial_suggested", trial, config={}), event("trial_started", trial, resources={}, node="")]


def report(trial, epoch, loss=1.0):
    return event("report", trial, epoch=epoch, metrics={"loss": loss})


def stop(trial, epoch):
    fields = {"rung": None, "bracket": None, "value": 1.0, "cutoff": None, "recorded": 0, "reason": "why"}
    return event("decision", trial, epoch=epoch, action="stop", **fields)


def ended(trial, status, reason="why"):
    return event("trial_ended", trial, status=status, reason=reason)


def begun(max_epochs=4):
    return event("experiment_started", name="x", max_epochs=max_epochs)


def resumed(max_epochs=4):
    return event("experiment_resumed", name="x", max_epochs=max_epochs)


def statuses(search):
    return {int(trial_id): trial.status for trial_id, trial in search.trials.items()}


def again(tmp_path, history, **choices):
    return Search(tmp_path / "resumed", history=history, **{"max_epochs": 4, "scheduler": "fifo", **choices})


def test_a_failure_whose_end_the_crash_cut_off_ends_its_trial(tmp_path):
    failed = event("trial_failed", 0, error="broken", kind="user", will_retry=False)
    begins, ends = [begun(), *started(0)], [resumed(), ended(0, "failed", "broken")]
    for reports, more in itertools.product(([report(0, 1)], []), ([], ends[:1], ends)):
        (tmp_path / "resumed").unlink(missing_ok=True)
        search = again(tmp_path, [*begins, *reports, failed, *more])
        assert statuses(search) == {0: "ERROR"}
        assert search.searcher_heard == [("00000", 1)] * len(reports) + [("00000", "failed")]
        ends = [(e["trial"], e["status"], e["reason"]) for e in read(search.path)]
        assert ends == ([] if len(more) == 2 else [("00000", "failed", "broken")])


@pytest.mark.parametrize(
    ("kind", "code", "status"),
    [("user", "b", "PENDING"), ("oom", "b", "PENDING"), ("oom", "a", "ERROR"), ("worker_lost", "b", "ERROR")],
)
def test_after_the_code_has_changed_what_failed_by_it_is_tried_again(tmp_path, kind, code, status):
    failed = event("trial_failed", 0, error="broken", kind=kind, will_retry=False)
    history = [
        begun() | {"space_sha256": "a"},
        *started(0),
        *started(1),
        report(1, 1),
        failed,
        ended(0, "failed", "broken"),
    ]
    search = again(tmp_path, [*history, resumed() | {"space_sha256": code}])
    assert statuses(search)[0] == status


def test_a_trial_whose_function_had_returned_is_completed_though_the_crash_cut_off_its_end(tmp_path):
    search = again(tmp_path, [begun(), *started(0), *started(1), report(1, 2), report(0, 2) | {"final": True}])
    assert statuses(search) == {0: "TERMINATED", 1: "PENDING"}
    assert [(e["trial"], e["status"]) for e in read(search.path) if e["event"] == "trial_ended"] == [
        ("00000", "completed")
    ]


def test_an_interrupted_trial_continues_and_a_stopped_one_ends(tmp_path, capsys):
    history = [begun(), *started(0), *started(1), report(0, 1), report(1, 1, math.nan), stop(1, 1)]
    history += [ended(0, "interrupted"), ended(1, "interrupted")]
    for more in ([], [resumed()]):  # of the second, no end was written before the next crash
        (tmp_path / "resumed").unlink(missing_ok=True)
        search = again(tmp_path, history + more)
        assert statuses(search) == {0: "PENDING", 1: "TERMINATED"}
        assert (
            capsys.readouterr().out
            == "resumed: 1 trial continues (1 from epoch 1, without a checkpoint), 1 done, 7 still to come\n"
        )
        ends = [(e["trial"], e["status"]) for e in read(search.path) if e["event"] == "trial_ended"]
        assert ends == [("00001", "pruned")]


@pytest.mark.parametrize(
    ("loss", "status", "after"), [(1.0, "completed", "PENDING"), (math.nan, "pruned", "TERMINATED")]
)
def test_a_trial_that_diverged_in_the_last_epoch_gets_no_more(tmp_path, loss, status, after):
    saved = "ray/00000/checkpoint_000001"
    (tmp_path / "x" / saved).mkdir(parents=True)
    last = report(0, 2, loss) | {"checkpoint": saved}
    history = [begun(2), *started(0), report(0, 1), last, stop(0, 2), ended(0, status)]
    search = again(tmp_path, history, results=str(tmp_path), name="x")
    assert statuses(search) == {0: after}


def test_the_recorded_action_takes_precedence_over_the_rules(tmp_path, capsys):
    """Which other trials ran decided the pause: fifo would let the trial continue."""
    pause = stop(0, 1) | {"action": "pause"}
    assert statuses(again(tmp_path, [begun(), *started(0), report(0, 1), pause])) == {0: "PAUSED"}
    assert capsys.readouterr().out == "resumed: 0 trials continue, 1 paused, 0 done, 8 still to come\n"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (report(7, 1), "report of trial 00007"),
        (report(0, 1) | {"checkpoint": "ray"}, "report of trial 00000"),
        (event("trial_started", 8, resources={}, node=""), "trial_started of trial 00008"),
        (stop(9, 1), "decision of trial 00009"),
        (ended(9, "pruned"), "trial_ended of trial 00009"),
    ],
)
def test_a_whole_line_that_cannot_follow_is_named(tmp_path, line, what):
    with pytest.raises(RequestError, match=rf"journal.jsonl, line 4: {what} cannot follow .*; restore the journal"):
        again(tmp_path, [begun(), *started(0), line, report(0, 2)], scheduler="asha")


def test_a_checkpoint_of_a_task_that_holds_other_objects_is_damaged(tmp_path, caplog):
    saved = "ray/00000/checkpoint_000000"
    (tmp_path / "x" / saved).mkdir(parents=True)
    torch.save({"training": Search}, tmp_path / "x" / saved / "state.pt")
    history = [begun(), *started(0), report(0, 1) | {"checkpoint": saved}]
    search = again(tmp_path, history, results=str(tmp_path), name="x")
    assert statuses(search) == {0: "PENDING"}
    assert "is damaged: it has more than tensors and plain values (by_hand.Search)" in caplog.text


def test_checkpoints_that_no_report_names_are_kept_and_new_ones_get_later_numbers(tmp_path):
    folder = tmp_path / "x" / "ray" / "00000"
    names = ["checkpoint_000000", "checkpoint_000007", "checkpoint_epoch9.bak", "checkpoint_keep", "other"]
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "file").touch()
    named = report(0, 1) | {"checkpoint": "ray/00000/checkpoint_000000"}
    search = again(tmp_path, [begun(), *started(0), named], results=str(tmp_path), name="x")
    assert sorted(path.parent.name for path in folder.glob("*/file")) == names
    assert search.trials["00000"].storage.current_checkpoint_index == 7


def test_a_checkpoint_behind_a_link_is_not_registered(tmp_path, caplog):
    """Ray would later delete it."""
    (tmp_path / "x" / "ray").mkdir(parents=True)
    (tmp_path / "outside" / "checkpoint_000000").mkdir(parents=True)
    (tmp_path / "outside" / "checkpoint_000000" / "file").touch()
    (tmp_path / "x" / "ray" / "00000").symlink_to(tmp_path / "outside")
    named = report(0, 1) | {"checkpoint": "ray/00000/checkpoint_000000"}
    search = again(tmp_path, [begun(), *started(0), named], results=str(tmp_path), name="x")
    assert "is behind a link" in caplog.text and search.trials["00000"].checkpoint is None
