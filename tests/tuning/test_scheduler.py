"""Reports are judged by the scheduler's rule, with a reason; what is no number never reaches it."""

import math
import os
from collections import Counter

import pytest
from by_hand import CONTINUE, STOP, Halving, Search, StandIn, reports
from journals import read


@pytest.mark.parametrize(("mode", "values"), [("min", (1.0, 2.0, 3.0, 9.0)), ("max", (9.0, 3.0, 2.0, 1.0))])
def test_median_explains_a_stop_by_the_trials_best_value(tmp_path, mode, values):
    search = Search(tmp_path / "j", max_epochs=8, scheduler="median", mode=mode)
    for number, value in enumerate(values):
        search.report(f"{number:05d}", 1, loss=value)
    first, second, third, fourth = [d["reason"] for d in search.decisions()]
    assert first == "no other trial to compare with at rung 1"
    assert (second, third) == tuple(f"only {few} to compare with at rung 1" for few in ("1 trial", "2 trials"))
    cutoff = f"the cutoff {sorted(values[:3])[1]:g} of the 3 trials recorded at rung 1"
    assert fourth == f"best loss {values[3]:g} is worse than {cutoff}"
    assert search.report("00000", 2, loss=values[3]) == CONTINUE
    assert search.decisions()[-1]["value"] == values[3]  # the reported value; its best is still the first
    assert [d["cutoff"] for d in search.decisions()[:4]] == [None, None, None, sorted(values[:3])[1]]


def test_a_pause_without_a_checkpoint_ends_the_search_with_what_to_do(tmp_path):
    search = Halving(tmp_path / "j")
    assert search.report(3, 2, loss=1.0, checkpoint_dir_name=None) == STOP
    reason = "--scheduler hyperband pauses trials, and this one saves no checkpoint to continue from"
    assert reason in search.stopper.reason
    assert search.ends() == {"00003": ("failed", reason)}


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_diverged_trial_stops_at_once_and_leaves_the_rungs_alone(tmp_path, mode, bad):
    search, without = (Search(tmp_path / name, max_epochs=8, mode=mode) for name in ("with", "without"))
    diverges_at, ended = {"00002": 1, "00005": 2, "00008": 3}, set()
    for trial_id, epoch, loss in reports(1):
        if trial_id in ended:
            continue
        if epoch == diverges_at.get(trial_id):
            assert search.report(trial_id, epoch, loss=bad) == STOP
            decision, reason = search.decisions()[-1], f"loss is {bad} at epoch {epoch}: the training diverged"
            assert decision["reason"] == reason and search.ends()[trial_id] == ("pruned", reason)
            assert decision["rung"] is None and decision["action"] == "stop"
            ended.add(trial_id)
            continue
        action = search.report(trial_id, epoch, loss=loss)
        assert action == without.report(trial_id, epoch, loss=loss)
        ended |= {trial_id} if action == STOP else set()
    decided = [[{**d, "time": 0} for d in each.decisions() if d["rung"]] for each in (search, without)]
    assert decided[0] == decided[1]


def test_a_first_report_without_the_metric_halts_the_search_with_the_names_it_has(tmp_path):
    search = Search(tmp_path / "j", metric="los")
    assert search.report("00000", 1, loss=0.5, accuracy=0.3) == STOP
    message = str(search.stopper.error)
    assert "--metric los: trial 00000 reports no 'los' at epoch 1; it reports accuracy, loss" in message
    assert "did you mean 'loss'?" in message and search.stopper.stop_all()
    assert search.ends()["00000"][0] == "failed"


def test_a_first_report_without_the_metric_of_stop_halts_the_search_with_the_names_it_has(tmp_path):
    search = Search(tmp_path / "j", stop=("acc=0.9",))
    assert search.report("00000", 1, loss=0.5, accuracy=0.3) == STOP
    message = str(search.stopper.error)
    assert "--stop acc: trial 00000 reports no 'acc' at epoch 1; it reports accuracy, loss; did you mean" in message


def test_a_later_report_without_the_metric_fails_its_trial_alone(tmp_path):
    search = Search(tmp_path / "j")
    assert search.report("00000", 1, loss=0.5) == CONTINUE
    assert search.report("00001", 1, accuracy=0.5) == STOP
    assert search.stopper.error is None and not search.stopper.stop_all()
    status, reason = search.ends()["00001"]
    assert status == "failed" and "reports no 'loss' at epoch 1; it reports accuracy" in reason
    assert search.report("00000", 2, loss=0.5) == CONTINUE


@pytest.mark.parametrize("value", ["0.5", None, [1.0, 2.0], True])
def test_a_metric_that_is_no_number_is_refused(tmp_path, value):
    search = Search(tmp_path / "j")
    assert search.report("00000", 1, loss=value) == STOP
    assert "which is not a number" in str(search.stopper.error)
    assert search.decisions()[0]["value"] is None


@pytest.mark.parametrize("value", [2**63, -(2**70), 10**400, -(10**400)])
def test_an_integer_that_no_float_can_hold_ends_its_trial_alone(tmp_path, value):
    search = Search(tmp_path / "j", max_epochs=8)
    assert search.report("00000", 1, loss=value) == STOP
    assert search.report("00001", 1, loss=0.5, num_steps=value) == CONTINUE
    status, reason = search.ends()["00000"]
    assert status == "pruned" and reason.endswith("at epoch 1: the training diverged")
    events = read(search.path)  # each line can be read
    assert [event["event"] for event in events] == ["report", "decision", "trial_ended", "report", "decision"]
    assert events[1]["value"] in (None, math.inf, -math.inf)
    assert search.scheduler.on_trial_complete(None, search.trials["00001"], {"loss": 10**400}) is None


@pytest.mark.parametrize("scheduler", ["asha", "median"])
def test_an_epoch_that_is_reported_again_is_journaled_and_not_judged_again(tmp_path, scheduler):
    search = Search(tmp_path / "j", max_epochs=8, scheduler=scheduler)
    for number in range(3):
        search.report(f"{number:05d}", 1, loss=1.0)
        search.report(f"{number:05d}", 2, loss=1.0)
    for epoch, loss in ((1, 1.0), (2, 1.0), (1, 9.0), (2, 9.0)):
        assert search.report("00003", epoch, loss=loss) == CONTINUE
    assert [(d["epoch"], d["value"]) for d in search.decisions() if d["trial"] == "00003"] == [(1, 1.0), (2, 1.0)]
    assert len([event for event in read(search.path) if event["event"] == "report"]) == 10


def test_every_report_is_journaled_before_its_decision_without_what_ray_adds(tmp_path):
    search = Search(tmp_path / "j")
    rays = {"pid": 7, "hostname": "h", "done": False, "trial_id": "00000", "config/lr": 0.1, "improved": 1}
    search.report("00000", 1, loss=0.5, accuracy=0.25, checkpoint_dir_name="checkpoint_000000", **rays)
    report, decision = read(search.path)
    assert report["metrics"] == {"loss": 0.5, "accuracy": 0.25} and report["epoch"] == 1
    assert report["checkpoint"] == "ray/00000/checkpoint_000000"
    assert decision["event"] == "decision"


@pytest.mark.parametrize(("mode", "sign"), [("min", 1), ("max", -1)])
def test_hyperband_explains_each_pause_stop_and_promotion(tmp_path, mode, sign):
    search = Halving(tmp_path / "j", mode=mode)
    waits = "waits at rung 2 for the other trials of its bracket"
    missed = f"is not among the best 2 of the 5 trials of its bracket at rung 2; the worst of these 2 has {sign * 0.2}"
    kept = "is among the best 2 of the 5 trials of its bracket at rung 2"
    stops, promotions = ((7, 0.3), (3, 0.5), (5, 0.4)), ((6, 0.2), (4, 0.1))
    assert search.halve(sign) == [
        *((number, "pause", 2, 1, None, number - 3, waits) for number in (3, 4, 5, 6)),
        *((number, "stop", 2, 1, sign * 0.2, 4, f"loss {sign * loss} {missed}") for number, loss in stops),
        *((number, "continue", 2, 1, sign * 0.2, 4, f"loss {sign * loss} {kept}") for number, loss in promotions),
    ]
    assert {trial: status for trial, (status, _) in search.ends().items()} == dict.fromkeys(
        ("00003", "00005", "00007"), "pruned"
    )


def test_paused_trials_are_decided_on_by_a_metric_that_their_reports_nest(tmp_path):
    """Ray keeps a report as it was made: {"val": {"loss": 0.5}} for the metric val/loss."""
    search = Halving(tmp_path / "j", metric="val/loss")
    for number in range(3, 8):
        search.report(number, 2, **{"val/loss": float(number)})
        search.stage.trials[f"{number:05d}"].last_result = {"training_iteration": 2, "val": {"loss": float(number)}}
    promoted = [(d["trial"], d["value"]) for d in search.decisions() if d["action"] == "continue"]
    assert promoted == [("00004", 4.0), ("00003", 3.0)]


def test_hyperband_says_that_a_bracket_has_ended(tmp_path):
    search = Halving(tmp_path / "j")
    num = len(search.halve())
    for number in (4, 6):
        search.report(number, 6, loss=0.5)
    ended = "its bracket has ended at rung 6"
    after = [(d["trial"], d["action"], d["cutoff"], d["reason"]) for d in search.decisions()[num:]]
    assert after == [
        ("00004", "pause", None, "waits at rung 6 for the other trials of its bracket"),
        ("00006", "stop", None, ended),
        ("00004", "stop", None, ended),
    ]


def test_the_trials_that_ran_when_the_search_stopped_run_first(tmp_path):
    search = Search(tmp_path / "j")
    others, again = StandIn("00000", status="PENDING"), [StandIn(f"{n:05d}", status="PENDING") for n in (3, 1, 2)]
    search.scheduler.run_first = list(again)
    assert search.scheduler.choose_trial_to_run(None) is None  # Ray has received none of them
    for trial in (others, *again):
        search.scheduler.on_trial_add(None, trial)
    started = []
    for _ in range(4):
        started.append(search.scheduler.choose_trial_to_run(None))
        started[-1].status = "RUNNING"
    assert started == [*again, others]


def test_a_trial_is_stopped_or_paused_only_after_its_line_is_on_the_disk(tmp_path, monkeypatch):
    sizes, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: sizes.append(os.fstat(handle).st_size) or fsync(handle))
    search = Search(tmp_path / "j", scheduler="asha", max_epochs=4, reduction_factor=2)
    actions = Counter()
    for trial, epoch, loss in reports(1):
        if search.trials.get(trial) is None or search.trials[trial].status == "RUNNING":
            sizes.clear()
            before = (tmp_path / "j").stat().st_size
            action = search.report(trial, epoch, loss=loss) if epoch <= 4 else None
            lines = (tmp_path / "j").read_bytes()[before:]
            decided = before + lines.find(b"\n", lines.find(b'"action": "stop"')) + 1
            assert (decided in sizes) if action == STOP else not sizes
            actions[action] += 1
            if action == STOP:
                search.trials[trial].status = "TERMINATED"
    assert actions[STOP] > 5 and actions[CONTINUE] > 5
