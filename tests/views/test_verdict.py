"""The verdict: each sentence about a search, from records that were made for it."""

import json
import re
from dataclasses import replace

import pytest
from journals import ruled

from tests.serve.conftest import begin, train
from tuner.core.events import DIVERGED, Report
from tuner.record.records import TrialRecord
from tuner.record.results import KILLED, ExperimentRecord, load
from tuner.spec.experiment import Experiment
from tuner.views.commands import audit_command, extend_command, resume_command
from tuner.views.compare import compared_of
from tuner.views.figures.catalogue import all_figures
from tuner.views.report import page
from tuner.views.tables import best_row
from tuner.views.verdict import ending_lines, outcome_of, verdict_of

TASK = {"data": {}}  # what only a search over a task records


def trial(number, values, status="completed", seconds=0.0, rung=None, cutoff=1.0, reason="r"):
    reports = tuple(Report(e, {"loss": v}, None, e, 100 * number + e) for e, v in enumerate(values, 1))
    decisions = () if rung is None else (ruled(rung, rung, 0, values[rung - 1], cutoff, 9, "stop", "why"),)
    # An epoch takes an eighth of the time of a trial of eight reports; one report alone says nothing.
    own = {"seconds": seconds, "epoch_seconds": seconds / len(values) if len(values) > 1 else None}
    reason = DIVERGED if status == "pruned" and values[-1] != values[-1] else reason
    return TrialRecord(f"{number:05}", {"lr": 0.1}, status, reason, reports, decisions, changed_at=number, **own)


def record(*trials, state="finished", reason="", facts=TASK, refused=False, out_of_time=False, **options):
    experiment = Experiment(**{"space": "x", "max_epochs": 8, "name": "e", "results": "/nowhere", **options})
    return ExperimentRecord(experiment, facts, trials, state, reason, refused=refused, out_of_time=out_of_time)


def searched(**options):
    """Eight trials that trained fully, eight that were stopped after an epoch (and a start of 30 s), one diverged."""
    full = [trial(n, [n / 10] * 8, seconds=80.0) for n in range(8)]
    stopped = [trial(n, [float(n)], "pruned", 40.0, rung=1, cutoff=7.9) for n in range(8, 16)]
    return record(*full, *stopped, trial(16, [1.0, float("nan")], "pruned", 20.0), **options)


def test_what_was_pruned_and_saved_is_a_sum_over_the_pruned_trials():
    verdict = verdict_of(searched())
    assert verdict.outcome == "finished" and verdict.ended == "The search is done: all its 17 trials ended."
    assert verdict.about("pruned") == "8 of 17 trials, by asha; 1 diverged."
    # Nothing was saved at the trial that diverged: no rule stopped it.
    assert (verdict.epochs_saved, verdict.seconds_saved) == (8 * 7, 8 * 70)  # the start of a worker counts nowhere
    assert verdict.about("saved").startswith("About 56 of 130 epochs (43 %) and 9 min 20 s on workers.")
    assert "lets each of the 8 trials that asha stopped train 8 epochs at the search's median" in verdict.about("saved")
    assert verdict_of(searched(stop=("loss=0",))).about("saved").startswith("At most 56 of 130")


def saved(*trials, **options):
    verdict = verdict_of(record(*trials, facts={}, **options))  # of a function
    return verdict.epochs_saved, verdict.seconds_saved, verdict.about("saved")


def returned(number, epochs):
    """A trial whose function returned."""
    return trial(number, [1 + number / 100] * epochs, seconds=2.0 * epochs)


def test_what_was_saved_follows_the_length_and_the_speed_of_the_trials():
    whole, stopped = returned(0, 4), [trial(n, [5.0], "pruned", rung=1) for n in (5, 6)]
    # A trial with a speed of its own counts at it: the start of its worker is in neither.
    slow = trial(7, [5.0] * 2, "pruned", 10.0, rung=2)
    epochs, seconds, text = saved(whole, returned(1, 4), *stopped, slow)
    assert (epochs, seconds) == (8, 22.0) and "at its own speed (2 of them at the search's median speed)." in text
    epochs, seconds, text = saved(whole, slow)
    assert (epochs, seconds) == (2, 10.0)
    assert text.endswith("lets the trial that asha stopped train 4 epochs at its own speed.")
    # No trial reported twice in one attempt: nothing is known of the seconds.
    epochs, seconds, text = saved(replace(whole, epoch_seconds=None), *stopped)
    assert (epochs, seconds) == (6, 0.0) and "epochs (50 %). This" in text and text.endswith("stopped train 4 epochs.")
    # No trial has ended by itself yet: how many epochs the stopped ones would have trained is unknown.
    assert saved(*stopped, trial(0, [1.0] * 3, "running"), state="running") == (0, 0.0, "")
    # --stop ended some: they say nothing about the length.
    assert saved(whole, *stopped, stop=("loss=0",)) == (0, 0.0, "")
    # Of trials of unequal length, the longest is a bound.
    epochs, _, text = saved(whole, returned(1, 9), stopped[0], max_epochs=16)
    assert epochs == 8 and text.startswith("At most 8 of 22 epochs (36 %)")
    assert "as long as the longest of the others (9 epochs)" in text


@pytest.mark.parametrize(
    ("length", "why"),
    [(0, "compares trials after epoch 40, and they ended after 10 or fewer"), (10, "the others had passed the rungs")],
)
def test_a_search_whose_trials_passed_the_rungs_says_why_it_pruned_nothing(length, why):
    rules = {"max_epochs": 1000, "grace_period": 40, "auto_grace": True}
    verdict = verdict_of(replace(record(*(returned(n, 10) for n in range(3)), facts={}, **rules), length=length))
    assert f"{why}. Give --max-epochs 10." in verdict.about("warning")
    assert [point.term for point in verdict.points].count("warning") == 1
    assert verdict.steps[0].command.endswith("--max-epochs 10")
    assert length or verdict.about("pruned") == "0 of 3 trials: no trial was compared with another."


@pytest.mark.parametrize(("waiting", "said"), [(8, "0 of 10 trials: 8 wait"), (1, "0 of 3 trials: 1 waits")])
def test_trials_that_wait_at_a_rung_were_not_compared_for_good(waiting, said):
    waits = ruled(1, 1, 0, 2.0, 1.0, 9, "pause", "waits at rung 1")
    paused = [replace(trial(n, [2.0], "paused"), decisions=(waits,)) for n in range(waiting)]
    cut = [trial(n, [1.0] * 3, "interrupted") for n in (8, 9)]
    over = {"scheduler": "asha-promotion", "out_of_time": True, "reason": "the time budget of 20s is over"}
    assert verdict_of(record(*paused, *cut, **over)).about("pruned") == f"{said} at a rung for a promotion."
    continued = replace(trial(1, [1.0] * 8), decisions=(waits._replace(action="continue"),))
    done = verdict_of(record(trial(0, [1.0] * 8), continued))
    assert done.about("pruned") == "0 of 2 trials: none was worse than a cutoff."


def test_close_calls_are_pruned_trials_that_missed_by_little_of_the_spread():
    verdict = verdict_of(searched())
    (call,) = verdict.close_calls  # values 8 to 15: the interquartile range is 13.25 - 9.75 = 3.5, the cutoff 7.9
    assert (call.trial, call.epoch) == ("00008", 1) and call.share == pytest.approx(0.1 / 3.5)
    assert verdict.about("close calls").startswith("1 pruned trial missed the cutoff by less than 5 %")
    few = verdict_of(record(trial(0, [1.0] * 8), trial(1, [2.0], "pruned", rung=1)))
    assert few.close_calls == [] and few.about("close calls").startswith("Unknown")


def test_close_calls_are_counted_however_many_decisions_were_closer():
    """Decisions that let trials continue, and rungs whose values are all alike, have far smaller margins."""
    full = [trial(n, [n / 10] * 8) for n in range(8)]
    near = [
        replace(trial(100 + n, [1.0]), decisions=(ruled(1, 1, 0, 1.0, 1.0001, 9, "continue", "why"),))
        for n in range(300)
    ]
    # At rung 2, the interquartile range of the values 0, 10, ..., 2490 is 1245: 5 % of it are 62.25.
    cut = [trial(1000 + n, [0.0, 10.0 * n], "pruned", rung=2, cutoff=-5.0) for n in range(250)]
    # At rung 4, 0.01 is far from the cutoff beside values that differ by less.
    alike = [trial(2000 + n, [0.0, 0.0, 0.0, n / 1e5], "pruned", rung=4, cutoff=-0.01) for n in range(20)]
    verdict = verdict_of(record(*full, *near, *cut, *alike))
    assert verdict.about("close calls").startswith("6 pruned trials missed the cutoff by less than 5 %")
    assert [call.trial for call in verdict.close_calls] == [f"{1000 + n:05}" for n in range(6)]
    assert [call.margin for call in verdict.close_calls] == [5.0 + 10 * n for n in range(6)]
    many = [trial(n, [float(8 + n % 8)], "pruned", rung=1, cutoff=7.9) for n in range(2400)]
    verdict = verdict_of(record(*full, *many))
    assert verdict.about("close calls").startswith("300 pruned trials missed") and len(verdict.close_calls) == 10


def test_a_verdict_counts_the_pruned_trials_that_would_survive_today():
    """Trials 0 to 3 were pruned when 4 to 11 were still to come, which are worse; the best half would survive."""
    early = [trial(n, [1.0 + n], "pruned", rung=1, cutoff=0.5) for n in range(4)]
    later = [
        replace(trial(n, [10.0 + n] * 8), decisions=(ruled(1, 1, 0, 10.0 + n, 50.0, n, "continue", "why"),))
        for n in range(4, 12)
    ]
    text = verdict_of(record(*early, *later)).about("good trials pruned?")
    # Two trials that continued pass today's cutoff, too, and six that continued do not.
    assert text.endswith("Compared with all results at their rung, 4 of the pruned would survive today.")
    late = [trial(n, [50.0], "pruned", rung=1, cutoff=30.0) for n in range(12, 16)]
    text = verdict_of(record(*later, *late)).about("good trials pruned?")
    assert "would survive" not in text


def test_whether_good_trials_were_pruned_is_unknown_without_an_audit():
    verdict = verdict_of(searched())
    assert verdict.about("good trials pruned?").startswith("Unknown; an audit of 5 of them would tell.")
    assert "tuner.audit e --trials 5 --results /nowhere" in verdict.steps[0].command
    few = verdict_of(record(*(trial(n, [n / 10] * 8) for n in range(3)), trial(3, [3.0], "pruned", rung=1),
                            trial(4, [4.0], "pruned", rung=1)))  # fmt: skip
    assert few.about("good trials pruned?").startswith("Unknown; an audit of 2 of them would tell.")
    assert "tuner.audit e --trials 2 " in few.steps[0].command  # as many as were pruned
    running = verdict_of(searched(state="running"))
    assert running.about("good trials pruned?") == "Unknown while the search runs." and running.steps == []


def test_an_audit_is_offered_nowhere_where_it_fails():
    verdict = verdict_of(searched(facts={}))  # a function
    assert verdict.about("good trials pruned?").startswith("Unknown; only a search over a task can be audited.")
    diverged = verdict_of(record(trial(0, [1.0] * 8), trial(1, [float("nan")], "pruned")))
    winner_alone = verdict_of(record(trial(0, [1.0], "pruned", rung=1), trial(1, [2.0] * 8)))
    for each in (verdict, diverged, winner_alone):
        assert "tuner.audit" not in "".join(step.command for step in each.steps)
    assert diverged.about("good trials pruned?") == winner_alone.about("good trials pruned?") == ""


def test_an_audit_answers(tmp_path):
    folder = tmp_path / "e"
    folder.mkdir()
    known = {"stopped": 1, "epochs": 8, "best_epoch": 1, "differs": "", "seconds": 1.0}
    audited = [
        {"trial": "00008", "best": -1.0, "beats": True, **known},
        *({"trial": f"{n:05}", "best": 9.0, "beats": False, **known} for n in (9, 10)),
    ]
    # The fourth was pruned once, but is not any more: it does not count.
    audited.append({"trial": "00001", "best": -1.0, "beats": True, **known})
    saved = {"winner": "00000", "seed": 0, "sample": [each["trial"] for each in audited], "trials": audited}
    (folder / "audit.json").write_text(json.dumps(saved))
    verdict = verdict_of(searched(results=str(tmp_path)))
    text = verdict.about("good trials pruned?")
    assert text.startswith("Of 3 pruned trials that an audit trained to the end, 1 beat the best trial.")
    assert "Of the 8 trials that a rule pruned, 1 to 6 would beat it (12.5 % to 75 %, with 95 % confidence)." in text
    assert not any("tuner.audit" in step.command for step in verdict.steps)
    saved["trials"] += [{"trial": f"{n:05}", "best": 9.0, "beats": False, **known} for n in range(11, 16)]
    (folder / "audit.json").write_text(json.dumps(saved))
    whole = verdict_of(searched(results=str(tmp_path))).about("good trials pruned?")
    assert "Of the 8 trials that a rule pruned, 1 would beat it (12.5 %)." in whole


@pytest.mark.parametrize(
    ("change", "outcome", "ended", "step"),
    [
        ({"reason": "the time budget of 30m is over", "time_budget": "30m", "out_of_time": True}, "out of time",
         "The search ran out of time: the time budget of 30m is over. 9 of 17 trials have ended.",
         "--time-budget 3600s"),
        ({"state": "interrupted", "reason": "Ctrl-C"}, "interrupted",
         "The search was interrupted: Ctrl-C. 9 of 17 trials have ended.", "tuner.run --resume e --results /nowhere"),
        ({"state": "interrupted", "reason": KILLED}, "killed",
         "The search's process was killed: 9 of 17 trials have ended. What was reported is kept.", "--resume e"),
        ({"state": "failed", "reason": "--metric los: no such metric", "refused": True}, "refused",
         "The search was refused: --metric los: no such metric.", "tuner.run --space x"),
        ({"state": "failed", "reason": "3 trials failed in the same way"}, "failed",
         "The search failed: 3 trials failed in the same way. 9 of 17 trials have ended.", "--space x"),
        ({"state": "running"}, "running", "The search is running: 9 of 17 trials have ended.", ""),
    ],
)  # fmt: skip
def test_what_ended_the_search_and_what_goes_on(change, outcome, ended, step):
    one = searched(**change)
    trials = [replace(t, status="interrupted") if t.status == "completed" else t for t in one.trials]
    verdict = verdict_of(replace(one, trials=tuple(trials)))
    assert (verdict.outcome, verdict.ended) == (outcome, ended)
    assert step in "".join(each.command for each in verdict.steps)


def test_a_search_without_an_answer_has_failed():
    failed = record(*(trial(n, [1.0], "failed", reason="ValueError: wrong\nmore") for n in range(3)))
    assert outcome_of(failed) == "failed"
    assert verdict_of(failed).ended == "The search ended without an answer: every trial failed."
    assert verdict_of(failed).about("failed trials") == "3 trials failed; the newest is 00002: ValueError: wrong."
    diverged = verdict_of(record(trial(0, [float("nan")], "pruned")))
    assert diverged.ended == "The search ended without an answer: no finite loss."
    assert "learning rate" in diverged.steps[0].text
    assert outcome_of(record(trial(0, [1.0], "failed"), trial(1, [2.0] * 8))) == "finished"
    assert 'class="verdict bad"' in page(failed) and 'class="verdict"' in page(searched())


def test_a_search_whose_time_ended_before_the_searched_metric_came_is_offered_more_time():
    two = {"metric": "accuracy", "mode": "max", "prune_by": "loss", "time_budget": "20s", "out_of_time": True}
    verdict = verdict_of(record(trial(0, [1.0], "interrupted"), reason="the time budget of 20s is over", **two))
    assert verdict.ended.endswith(": no finite accuracy; the time budget of 20s is over.")
    (step,) = verdict.steps
    assert step.text == "Give it twice the time:" and step.command.endswith(" --time-budget 40s")


def test_a_search_whose_trials_all_diverged_advises_other_values_instead_of_more_trials():
    nan = float("nan")
    for losses in ([nan], [0.5, nan]):
        all_of = record(*(trial(n, losses, "pruned") for n in range(3)))
        assert verdict_of(all_of).about("values").startswith("the 3 trials all diverged: their loss became NaN")
        texts = [step.text for step in verdict_of(all_of).steps]
        assert any("smaller learning rates" in text for text in texts) and not any("many trials" in t for t in texts)
        assert any(line.startswith("NOTE: the 3 trials all diverged") for line in ending_lines(all_of))
    some = record(trial(0, [nan], "pruned"), trial(1, [0.5, 0.4]))
    assert verdict_of(some).about("values") == "" and "many trials" in verdict_of(some).steps[-1].text


def test_trials_that_all_reported_one_value_are_told():
    same = record(*(trial(n, [0.5, 0.5]) for n in range(3)))
    assert verdict_of(same).about("values").startswith("the 3 trials reported the same loss, 0.5, in every epoch")
    for others in ([trial(0, [0.5])], [trial(0, [0.5]), trial(1, [0.5, 0.4])], [trial(0, [0.5]), trial(1, [])]):
        assert verdict_of(record(*others)).about("values") == ""


@pytest.mark.parametrize(
    ("outcome", "written"),
    [("refused", {"state": "failed", "refused": True}), ("failed", {"state": "failed", "refused": False}),
     ("out of time", {"state": "finished", "reason": "the time budget of 30m is over", "out_of_time": True})],
)  # fmt: skip
def test_a_refused_search_is_told_from_its_journal_and_has_no_best_trial(tmp_path, outcome, written):
    journal = begin(tmp_path, "one")
    train(journal, "0", {}, [1.0], status="completed" if outcome == "out of time" else "failed")
    journal.write("experiment_finished", **{"reason": "--metric: trial 0 reports x", **written})
    read = load(folder := tmp_path / "one")
    assert outcome_of(read) == outcome and (read.state == "finished") == (outcome == "out of time")
    assert (best_row(read) is None) == (outcome == "refused")
    journal.write("experiment_resumed")
    journal.close()
    assert load(folder).state == "running" and not load(folder).refused


def test_the_trials_that_break_a_constraint_are_counted():
    trials = [trial(n, [0.5 + n / 10]) for n in range(4)]
    said = verdict_of(record(*trials, constraint=("loss <= 0.65",))).about("constraints")
    assert said == "2 of 4 trials break loss <= 0.65; the rungs do not look at it, only 'at start' ends such a trial."
    for limit in ("loss <= 0.65 at start", "loss <= 9"):
        assert verdict_of(record(*trials, constraint=(limit,))).about("constraints") == ""


def test_a_refused_search_names_no_best_trial_anywhere_and_is_not_resumed():
    options = {"state": "failed", "refused": True, "reason": "--scheduler hyperband pauses trials"}
    facts = {**TASK, "space": {"params": {}}}
    refused = replace(searched(facts=facts, **options), trials=tuple(
        replace(each, config={"lr": 0.1 * i, "l1": i}) for i, each in enumerate(searched().trials)
    ))  # fmt: skip
    done = replace(refused, refused=False, state="finished")
    assert "best" in json.dumps(all_figures(done)) and resume_command(done) and compared_of(done).steps
    drawn = all_figures(refused)
    assert {"curves", "rung_values"} <= set(drawn) and not {"history", "parallel", "slices"} & set(drawn)
    assert not re.search("best", json.dumps(drawn), re.IGNORECASE)
    compared = compared_of(refused)
    assert (compared.row.best, compared.steps, compared.distributions) == (None, [], {})
    assert refused.best() is None and resume_command(refused) == extend_command(refused) == audit_command(refused) == ""


def test_hyperband_that_could_not_prune_says_why_and_what_to_change():
    rules = {"scheduler": "hyperband", "max_epochs": 9, "reduction_factor": 3}  # the first bracket has room for three
    full = [trial(n, [float(n)] * 9) for n in range(12)]
    none = record(*full, **rules)
    assert "let 4 or more trials run at once" in verdict_of(none).about("warning")
    assert any("--scheduler asha" in step.command for step in verdict_of(none).steps)
    assert any("hyperband pruned nothing" in line for line in ending_lines(none))
    assert "prunes none and has room for 3 trials" in verdict_of(record(*full[:3], **rules)).about("warning")
    some = record(*full, trial(12, [13.0] * 3, "pruned", rung=3), **rules)
    assert verdict_of(some).about("warning") == "" and not any("pruned nothing" in line for line in ending_lines(some))


def test_the_command_ends_with_a_few_lines():
    lines = ending_lines(searched())
    assert [line.split()[0] for line in lines] == ["pruned", "saved", "audit"]
    assert ending_lines(record(state="interrupted")) == []


def test_a_hostile_reason_is_one_bounded_line():
    for reason in ("x" * 5000, "x" * 500 + "\n<img>" + "y" * 5000):
        ended = verdict_of(record(state="failed", refused=True, reason=reason)).ended
        assert len(ended) < 1100 and "\n" not in ended
    assert "<img" not in page(record(state="failed", refused=True, reason="<img src=x>")).partition("</style>")[2]
