"""How trials stand together: brought up to date news by news as added up at once, and as plain sums say."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.record.records import Folding
from tuner.record.standing import Tally
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


def whole(standing):
    """All that a standing says; a nan is not itself."""
    counts = {status: count for status, count in sorted(standing.counts.items()) if count}
    return repr(replace(standing, trials=(), counts=counts))


@pytest.mark.parametrize("mode", ["min", "max"])
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12))
def test_news_by_news_it_is_what_it_is_added_up_at_once(mode, seed, step):
    experiment = Experiment(mode=mode)
    folding, tally = Folding(), Tally(experiment)
    for number, event in enumerate(events(seed)):
        folding.add(event)
        if number % step == 0:
            assert whole(tally.update(folding.records())) == whole(Tally(experiment).update(folding.records()))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_it_is_what_plain_sums_say(seed):
    folding = Folding()
    for event in events(seed):
        folding.add(event)
    trials = folding.records()
    standing = Tally(Experiment()).update(trials)
    finite = {n: [v for r in t.reports if (v := r.metrics["loss"]) == v] for n, t in enumerate(trials)}
    assert [rank.loss for rank in standing.ranked] == sorted(min(values) for values in finite.values() if values)
    assert standing.epochs == sum(trial.reports[-1].epoch for trial in trials if trial.reports)
    assert len(standing.ranked_decisions) == sum(len(trial.decisions) for trial in trials)
    assert [call.margin for call in standing.ranked_decisions] == sorted(
        call.margin for call in standing.ranked_decisions
    )
    reached = {(d.bracket, d.rung): set() for t in trials for d in t.decisions if d.rung}
    for trial in trials:
        for decision in trial.decisions:
            if decision.rung:
                reached[decision.bracket, decision.rung].add(trial.id)
    assert {(rung.bracket, rung.rung): rung.reached for rung in standing.rungs} == {
        p: len(c) for p, c in reached.items()
    }
    assert all(rung.continued + rung.stopped + rung.waiting == rung.reached for rung in standing.rungs)
    values = [value for _, value, *_ in standing.improvements]
    assert values == sorted(values, reverse=True) and standing.arrived == sum(
        e["event"] == "report" for e in events(seed)
    )
