"""Rules replayed: against real journals, and what is not known said so."""

import json
from dataclasses import replace

import plotly.graph_objects as go
import pytest
from journals import ruled
from workerless import KEPT, MANAGER, Workerless, run

from tuner.core.events import Report
from tuner.record.records import TrialRecord
from tuner.record.results import ExperimentRecord, load
from tuner.spec.experiment import Experiment
from tuner.views.figures.curves import draw_whatif
from tuner.views.whatif import Range, what_if


def record(curves, status="completed", **options):
    """Curves that arrive epoch by epoch, trial 0 first."""
    experiment = Experiment(**{"max_epochs": 8, "scheduler": "fifo", "name": "e", "results": "/nowhere", **options})
    trials = []
    for n, values in enumerate(curves):
        reports = tuple(Report(e, {"loss": v}, None, e, order=100 * e + n) for e, v in enumerate(values, 1))
        ended = status if len(values) < experiment.max_epochs else "completed"
        trials.append(TrialRecord(f"{n:05}", {"x": n}, ended, "r", reports, order=n))
    return ExperimentRecord(experiment, {}, tuple(trials), "finished")


def test_a_trial_that_failed_later_is_compared_at_its_last_rung():
    # Trials 0 to 2 are never stopped. Trial 7 reports at rung 3 as the last of its bracket, and fails in epoch 4.
    curves = [[float(n)] * length for n, length in ((9, 9), (9, 9), (9, 9), (5, 3), (1, 9), (4, 3), (3, 3), (2, 3))]
    one = record(curves, "pruned", max_epochs=9, scheduler="hyperband", reduction_factor=3)
    failed = replace(one.trials[7], status="failed", changed_at=350)
    fates = what_if(replace(one, trials=(*one.trials[:7], failed)), "hyperband", 1, 3).fates
    early = {fate.trial: (fate.epochs, fate.cutoff) for fate in fates if fate.outcome == "stopped"}
    assert early == {"00003": (3, 2.0), "00005": (3, 2.0), "00006": (3, 2.0)}
    assert (fates[7].outcome, fates[7].epochs) == ("ended", 3)


@pytest.mark.parametrize("scheduler", ["asha", "asha-promotion", "median", "fifo"])
def test_an_extended_search_is_replayed_as_it_was_and_says_which_trials_completed_before(
    one_ray, tmp_path, monkeypatch, scheduler
):
    """Recomputed from the journal: which trials trained all 4 epochs of the first session, and where rules stopped."""
    monkeypatch.setattr(MANAGER, Workerless)
    monkeypatch.setattr(*KEPT)
    choices = {"scheduler": scheduler, "num_samples": 16, "seed": 2, "searcher": "random", "concurrent": 2}
    for most in (4, 9):
        run(tmp_path / "e", max_epochs=most, **choices)
    lines = [json.loads(line) for line in (tmp_path / "e/journal.jsonl").read_text().splitlines()]
    completed = {line["trial"] for line in lines if line.get("reason") == "trained its 4 epochs"}
    epochs = {line["trial"]: line["epoch"] for line in lines if line["event"] == "report"}
    stops = [line for line in lines if line.get("action") == "stop" and line["rung"] is not None]
    outcome = what_if(load(tmp_path / "e"), scheduler, 1, 2)
    assert outcome.exact and {fate.trial: fate.epochs for fate in outcome.fates} == epochs
    assert outcome.reproduced == outcome.stopped_recorded == len(stops) == outcome.stopped.least
    assert f"{len(completed)} trials completed after epoch 4, the search's last epoch before a" in outcome.notes[0]


@pytest.mark.parametrize(("status", "outcome"), [("completed", "ended"), ("interrupted", "unknown")])
def test_a_trial_that_completed_before_an_extension_is_not_stopped_there(status, outcome):
    """It had no checkpoint to continue from, or the extended search was interrupted before its next report."""
    one = record([[float(n)] * (4 if n == 3 else 8) for n in range(4)], scheduler="asha")
    last = ruled(4, None, None, 3.0, None, 0, "stop", "trained its 4 epochs")
    early = replace(one.trials[3], decisions=(last,), status=status, changed_at=450)
    found = what_if(replace(one, trials=(*one.trials[:3], early)), "asha", 4, 2)
    assert (found.fates[3].outcome, found.fates[3].epochs) == (outcome, 4)
    assert found.notes[0].startswith("1 trial completed after epoch 4")


@pytest.mark.parametrize("scheduler", ["asha", "median", "hyperband"])
def test_rules_are_not_asked_about_a_report_that_completes_its_trial(scheduler):
    # Trial 3 is the worst at epoch 2, where its function returned: no rule may stop it.
    one = record([[float(n)] * (2 if n == 3 else 8) for n in range(4)], scheduler=scheduler, grace_period=2)
    last = ruled(2, None, None, 3.0, None, 0, "stop", "its function returned")
    one = replace(one, trials=(*one.trials[:3], replace(one.trials[3], decisions=(last,), changed_at=250)))
    fates = what_if(one, scheduler, 2, 2).fates
    assert (fates[3].outcome, fates[3].epochs) == ("ended", 2)


def test_a_trial_that_broke_a_constraint_at_its_start_ended_there_and_counts_at_no_rung():
    one = record([[5.0] * 8, [0.1], [4.0] * 8], "pruned", scheduler="asha", constraint=("size <= 1 at start",))
    broken = replace(one.trials[1], reports=(Report(1, {"loss": 0.1, "size": 2}, None, 1, order=101),))
    outcome = what_if(replace(one, trials=(one.trials[0], broken, one.trials[2])), "asha", 1, 2)
    assert outcome.exact and [fate.outcome for fate in outcome.fates] == ["ended"] * 3


def test_hyperband_is_replayed_with_its_waiting_trials():
    # 9 epochs and a factor of 3: trials 0 to 2 are never stopped; of 3 to 7, the best two continue after epoch 3.
    curves = [[float(n)] * 9 for n in (9, 9, 9, 5, 1, 4, 2, 3)]
    outcome = what_if(record(curves, max_epochs=9), "hyperband", 1, 3)
    ends = {int(fate.trial): (fate.outcome, fate.epochs, fate.rung, fate.cutoff) for fate in outcome.fates}
    whole, early = ("ended", 9, None, None), ("stopped", 3, 3, 2.0)
    assert ends == {0: whole, 1: whole, 2: whole, 3: early, 4: whole, 5: early, 6: whole, 7: early}
    assert "which trials would have started there is unknown" in outcome.notes[0]


def test_whole_curves_are_judged_exactly_what_is_saved_is_counted_and_a_winner_that_starts_slowly_is_lost():
    nothing = what_if(record([]), "asha", 1, 2)
    assert nothing.fates == [] and nothing.best == "" and nothing.exact
    outcome = what_if(record([[1.0] * 8, [3.0] * 8, [2.0] * 8]), "asha", 2, 2)
    assert outcome.exact and outcome.epochs == Range(14, 14) and outcome.epochs_recorded == 24
    assert [(f.outcome, f.epochs) for f in outcome.fates] == [("ended", 8), ("stopped", 2), ("stopped", 4)]
    assert (outcome.fates[2].value, outcome.fates[2].cutoff) == (2.0, 1.0)
    assert outcome.best == "00000" and outcome.best_lost is False
    slow = [9.0, 8.0, 7.0, 0.1, 0.1, 0.1, 0.1, 0.1]
    assert what_if(record([[1.0] * 8, [2.0] * 8, slow]), "asha", 1, 2).best_lost is True


def test_what_a_pruned_trial_would_have_reached_is_bounded():
    recorded = record([[1.0] * 8, [3.0], [2.0] * 8], status="pruned", scheduler="asha")
    outcome = what_if(recorded, "fifo", 1, 2)
    assert not outcome.exact and outcome.fates[1].outcome == "unknown" and "unknown" in outcome.notes[0]
    assert outcome.epochs == Range(17, 24) and outcome.stopped == Range(0, 0)
    names = {"as recorded", "unknown outcome", "best: trial 00000", "end of the record"}
    assert set(drawn(recorded, outcome)) == names


def test_trials_of_a_confirmation_are_no_part_of_a_replay():
    # Trial 2 repeats trial 1, which asha pruned after its best epoch, and wins; then the search went on with trial 3.
    curves, rules = [[3.0] * 8, [0.8, 1.0, 1.0, 5.0], [*[0.9] * 7, 0.5], [4.0] * 2], {"scheduler": "asha", "confirm": 1}
    one = record(curves, "pruned", confirm_seeds=2, **{**rules, "grace_period": 2})
    again = tuple(replace(one.trials[2], id=f"0000{n}", config={"x": 1}, confirms="00001") for n in (2, 4))
    one = replace(one, trials=(*one.trials[:2], again[0], one.trials[3], again[1]))
    assert one.confirmation.done and one.best()[0].confirms == "00001"
    for period in (2, 4):
        outcome = what_if(one, "asha", period, 2)
        assert [fate.trial for fate in outcome.fates] == ["00000", "00001", "00003"]
        assert outcome.epochs_recorded == 8 + 4 + 2 and (outcome.best, outcome.best_lost) == ("00001", False)
    assert draw_whatif(one, outcome)


def drawn(recorded, outcome):
    """The points of each trace of the figure, by its name; a curve ends with (None, None)."""
    traces = go.Figure(draw_whatif(recorded, outcome)).to_dict()["data"]
    return {trace["name"]: list(zip(trace["x"], trace["y"], strict=True)) for trace in traces}


def test_the_figure_cuts_each_curve_where_it_would_be_stopped():
    recorded = record([[1.0] * 8, [3.0] * 8, [2.0] * 8])
    end, epochs = [(None, None)], range(1, 9)
    assert drawn(recorded, what_if(recorded, "asha", 2, 2)) == {
        "saved epochs": [*((e, 3.0) for e in epochs if e >= 2), *end, *((e, 2.0) for e in epochs if e >= 4), *end],
        "pruned": [(1, 3.0), (2, 3.0), *end, *((e, 2.0) for e in epochs if e <= 4), *end],
        "best: trial 00000": [*((e, 1.0) for e in epochs), *end],
        "pruned here": [(2, 3.0), (4, 2.0)],
    }
    alone = record([[1.0] * 8])
    assert drawn(alone, what_if(alone, "fifo", 1, 2)) == {"best: trial 00000": [*((e, 1.0) for e in epochs), *end]}
