"""The summary of a search equals plain sums over its events."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.record import search_stats
from tuner.record.records import Folding
from tuner.record.search_stats import SearchStats
from tuner.spec.experiment import Experiment


def events(seed, trials=6, epochs=5):
    """A search as a journal has it, trials in turn by chance: rungs, pauses, failures, restarts, diverged values."""
    draw, clock, left = random.Random(seed), 0.0, {}
    for number in range(trials):
        yield {"time": clock, "event": "trial_suggested", "trial": f"{number}", "config": {"x": number}}
        left[f"{number}"] = 0
    while left:
        clock += 1
        trial = draw.choice(sorted(left))
        of = {"time": clock, "trial": trial}
        if left[trial] == 0 or draw.random() < 0.1:
            yield {**of, "event": "trial_started", "resources": {}, "node": "n"}
            left[trial] = max(1, left[trial] - draw.randint(0, 2))  # a restart trains some epochs again
        value = draw.choice([draw.random(), draw.random(), float("nan"), 0.5])
        yield {**of, "event": "report", "epoch": left[trial], "metrics": {"loss": value}}
        if draw.random() < 0.7:
            rung = {"epoch": left[trial], "rung": draw.choice([1, 2, None]), "bracket": draw.choice([0, 1])}
            compared = {"value": value, "cutoff": draw.choice([None, draw.random()]), "recorded": draw.randint(0, 5)}
            action = draw.choice(["continue", "pause", "stop"])
            yield {**of, "event": "decision", **rung, **compared, "action": action, "reason": ""}
        left[trial] += 1
        if left[trial] > epochs or draw.random() < 0.1:
            yield {**of, "event": "trial_ended", "status": draw.choice(["completed", "pruned"]), "reason": ""}
            del left[trial]


@pytest.mark.parametrize("mode", ["min", "max"])
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_the_summary_is_what_plain_sums_say(mode, seed):
    history, sign = list(events(seed)), 1 if mode == "min" else -1
    trials = tuple(Folding(history).records())
    stats = SearchStats(Experiment(mode=mode), trials)
    finite = [[sign * v for r in t.reports if (v := r.metrics["loss"]) == v] for t in trials]
    assert [rank.loss for rank in stats.ranked] == sorted(min(values) for values in finite if values)
    assert stats.epochs == sum(trial.reports[-1].epoch for trial in trials if trial.reports)
    margins = [trials[place].decisions[number].margin for _, place, number in stats.ranked_decisions]
    assert len(margins) == sum(len(trial.decisions) for trial in trials) and margins == sorted(margins)
    last, cutoffs = {}, {}
    for place, trial in enumerate(trials):
        for decision in trial.decisions:
            if decision.rung:
                last.setdefault((decision.bracket, decision.rung), {})[trial.id] = decision.action
                if decision.cutoff is not None:
                    cutoffs.setdefault((decision.bracket, decision.rung), []).append(
                        (decision.recorded, place, decision)
                    )
    for rung in stats.rungs:
        actions = list(last.pop((rung.bracket, rung.rung)).values())
        counts = [actions.count(action) for action in ("continue", "stop", "pause")]
        assert [rung.continued, rung.stopped, rung.waiting] == counts and rung.reached == sum(counts)
        of_cutoff = cutoffs.get((rung.bracket, rung.rung), [])
        most = max((each[:2] for each in of_cutoff), default=None)
        latest = [decision.cutoff for *order, decision in of_cutoff if tuple(order) == most]
        assert rung.cutoff_then == (latest[-1] if latest else None)
    assert not last
    losses = [sign * event["metrics"]["loss"] for event in history if event["event"] == "report"]
    best = [min((loss for loss in losses[:n] if loss == loss), default=None) for n in range(len(losses) + 1)]
    expected = [(n, sign * best[n]) for n in range(1, len(best)) if best[n] != best[n - 1]]
    assert [(found.epochs, found.value) for found in stats.improvements] == expected
    assert stats.num_reports == len(losses)


PARTS = (
    "counts", "epochs", "num_reports", "epoch_seconds", "lengths", "stopped", "failed", "worker_spans", "ranked",
    "ranked_decisions", "rungs", "improvements",
)  # fmt: skip


@pytest.mark.parametrize("many", [0, 100])  # changed items from which on lists are sorted anew
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_a_summary_that_takes_over_the_one_before_equals_one_computed_anew(many, seed):
    folding, draw, before = Folding(), random.Random(seed), None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_stats, "MANY", many)
        for event in events(seed):
            folding.add(event)
            if draw.random() < 0.3:
                trials, refused = tuple(folding.records()), draw.random() < 0.1
                stats = SearchStats(Experiment(), trials, refused=refused)
                anew = SearchStats(Experiment(), trials, refused=refused)
                if before:
                    stats.take_over(before)
                used = [part for part in PARTS if before is None or draw.random() < 0.7]
                assert {part: getattr(stats, part) for part in used} == {part: getattr(anew, part) for part in used}
                assert stats.best_saved(None) == anew.best_saved(None) and stats.best() == anew.best()
                before = stats
