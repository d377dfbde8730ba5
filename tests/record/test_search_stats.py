"""The summary of a search that takes over an earlier one; `tests/views/test_recomputed.py` checks its numbers."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import folding, typed

from tuner.record import search_stats
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


PARTS = (
    "counts", "epochs", "num_reports", "epoch_seconds", "lengths", "stopped", "failed", "worker_spans", "ranked",
    "ranked_decisions", "rungs", "improvements",
)  # fmt: skip


@pytest.mark.parametrize("many", [0, 100])  # changed items from which on lists are sorted anew
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_a_summary_that_takes_over_the_one_before_equals_one_computed_anew(many, seed):
    found, draw, before = folding(), random.Random(seed), None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_stats, "MAX_INSERTED_ITEMS", many)
        for event in typed(events(seed)):
            found.add(event)
            if draw.random() < 0.3:
                trials, refused, is_placed = tuple(found.records()), draw.random() < 0.1, draw.random() < 0.5
                stats, anew = (SearchStats(Experiment(), trials, refused, is_placed) for _ in range(2))
                if before:
                    stats.take_over(before)
                used = [part for part in PARTS if before is None or draw.random() < 0.7]
                assert {part: getattr(stats, part) for part in used} == {part: getattr(anew, part) for part in used}
                assert stats.best_saved(None) == anew.best_saved(None) and stats.best() == anew.best()
                before = stats
