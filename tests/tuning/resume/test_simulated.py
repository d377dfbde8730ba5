"""Thousands of simulated searches (`simulating.py`), whose journals and answers must keep every promise.

A failure prints its seed, what the seed chose and what happened. This repeats it alone:
`SEED=17 python -m pytest tests/tuning/resume/test_simulated.py`.
"""

import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from journals import read
from rules_again import check_decisions
from simulating import metrics_of, plan_of, simulate
from tiers import further
from workerless import outcome_of

from tuner.core.events import RETURNED
from tuner.record.results import load

STEP = 50  # seeds of a test: 10 s
MORE = [range(at, at + STEP) for at in range(0, 10_000, STEP)]
OWN = [range(int(os.environ["SEED"]), int(os.environ["SEED"]) + 1)] if "SEED" in os.environ else []
TESTS = str(Path(__file__).parents[2])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # percentiles of huge values
@pytest.mark.parametrize("seeds", OWN or [range(8), *further(MORE, 4)], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_every_promise_is_kept(tmp_path, seeds):
    for seed in seeds:
        check_seed(seed, tmp_path)


DIGEST = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from hashlib import sha256
from simulating import plan_of, simulate
print(*[sha256(simulate(plan_of(seed), Path({folder!r})).written).hexdigest() for seed in range(8)])
"""


@pytest.mark.slow
def test_a_seed_repeats_every_byte_of_the_journal_in_another_process(tmp_path):
    own = [hashlib.sha256(simulate(plan_of(seed), tmp_path / "here").written).hexdigest() for seed in range(8)]
    code, environment = DIGEST.format(tests=TESTS, folder=str(tmp_path / "there")), os.environ | {"PYTHONHASHSEED": "7"}
    there = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert there.returncode == 0, there.stderr
    assert there.stdout.split() == own


def check_lives(plan, events):
    """Each trial lives once: what it may do follows from its events before."""
    state, epochs, reported, before = {}, defaultdict(int), set(), ""  # `reported` in this session
    most, last_time, is_pbt = 0, 0.0, plan.phases[0]["scheduler"] == "pbt"
    for number, event in enumerate(events):
        kind, trial, at = event["event"], event.get("trial"), f"line {number}: {event}"
        assert event["time"] >= last_time, at
        last_time = event["time"]
        if kind in ("experiment_started", "experiment_resumed"):
            assert (kind == "experiment_started") == (number == 0), at
            before_most, most, reported = most, event["max_epochs"], set()
            before = events[number - 1].get("state") if number else ""
            state = {t: "idle" if each == "running" else each for t, each in state.items()}
            whole = [t for t, each in state.items() if each == "completed" and before_most <= epochs[t] < most]
            again = [t for t, each in state.items() if each == "failed" and before == "failed"] + whole
            state |= dict.fromkeys(again, "idle")
        elif kind == "trial_suggested":
            assert trial == f"{len(state):05d}", at
            state[trial] = "idle"
        elif kind == "trial_started":
            may = ("idle", "running", "paused") if is_pbt else ("idle", "running")  # a moved trial starts again
            assert state[trial] in may, f"{at} after {state[trial]}"
            state[trial] = "running"
        elif kind == "report":
            assert state[trial] == "running", f"{at} after {state[trial]}"
            if not is_pbt:  # without a checkpoint, a resumed trial begins anew; a retry reports no epoch again
                begins_anew = not plan.saves and trial not in reported and event["epoch"] == 1
                assert event["epoch"] == epochs[trial] + 1 or begins_anew, at
            reported.add(trial)
            epochs[trial] = event["epoch"]
        elif kind == "decision":
            if event["action"] == "pause":
                state[trial] = "idle" if event.get("budget") else "paused"  # the rule lets it go on, not the budget
            elif state[trial] == "paused" and event["action"] == "continue":
                state[trial] = "idle"
            elif event["action"] == "stop":
                state[trial] = "stopped"
        elif kind == "trial_failed":
            assert state[trial] in ("running", "idle"), f"{at} after {state[trial]}"
            state[trial] = "idle" if event["will_retry"] else "stopped"
        elif kind == "trial_ended":
            if event["status"] == "interrupted":
                assert state[trial] in ("running", "idle", "stopped"), f"{at} after {state[trial]}"
                state[trial] = "idle" if state[trial] == "running" else state[trial]
                continue
            assert state[trial] not in ("completed", "pruned", "failed"), f"{at} ended before"
            by_itself = event["reason"] == RETURNED and plan.odds.get("returns")
            assert event["status"] != "completed" or by_itself or epochs[trial] >= most, at
            state[trial] = event["status"]
        elif kind == "experiment_finished":
            assert not [t for t, each in state.items() if each == "running"], f"{at}: {state}"
    return state


def check_curves(plan, events):
    """Every value is that of a training that went on from its own state."""
    if plan.phases[0]["scheduler"] == "pbt":
        return
    configs = {event["trial"]: event["config"] for event in events if event["event"] == "trial_suggested"}
    ways = {trial: {0: 0} for trial in configs}
    for event in events:
        if event["event"] == "report":
            trial, epoch = event["trial"], event["epoch"]
            ways[trial][epoch], metrics = metrics_of(plan, trial, configs[trial], epoch, ways[trial][epoch - 1])
            own = {name: event["metrics"].get(name) for name in metrics}
            assert repr(own) == repr(metrics), f"{event} instead of {metrics}"


def check_answer(world, events, record):
    """The best trial is that of BEST_RULE, and its checkpoint is there."""
    e, reports = record.experiment, [event for event in events if event["event"] == "report"]
    if e.aim.several:
        return
    accuracies = {}
    for report in reports:
        accuracies[report["trial"]] = report["metrics"].get("accuracy", accuracies.get(report["trial"]))
    found = []
    for report in {(each["trial"], each["epoch"]): each for each in reports}.values():
        loss, accuracy, trial = report["metrics"].get("loss"), report["metrics"].get("accuracy"), report["trial"]
        fits = not e.constraint or kept(accuracy) and kept(accuracies[trial])
        if loss is not None and math.isfinite(loss) and fits:
            found.append(
                (e.wanted.sign * loss, reports.index(report), trial, report["epoch"], report.get("checkpoint"))
            )
    repeats = {trial.id: trial.confirms for trial in record.trials if trial.confirms}
    best, own = record.best(), [each for each in found if each[2] not in repeats]
    if repeats and len(world.plan.phases) > 1:
        return  # later trials may be better than those that train again
    if repeats:
        check_repeats(e, events, repeats, found)
        means = defaultdict(list)
        for repeat, original in repeats.items():
            means[original].append(min((each[0] for each in found if each[2] == repeat), default=None))
        wanted = min(
            e.confirm, len({json.dumps(trial.config) for trial in record.trials if trial.id in {o[2] for o in own}})
        )
        ended = all(trial.status in ("completed", "pruned", "failed") for trial in record.trials if trial.id in repeats)
        if ended and len(means) == wanted and all(len(each) == e.confirm_seeds for each in means.values()):
            whole = {original: statistics.fmean(each) for original, each in means.items() if None not in each}
            if not whole:
                return
            winner = min(whole.values())
            winners = [repeat for repeat, original in repeats.items() if whole.get(original) == winner]
            own = [each for each in found if each[2] in winners]
            if len([each for each in whole.values() if each == winner]) > 1:
                return
    if not own:
        return
    firsts = {}  # of equal values, a trial stands for its first epoch; of equal trials, the first to report wins
    for each in sorted(own, key=lambda each: (each[0], each[3])):
        firsts.setdefault(each[2], each)
    first = _, _, trial, epoch, checkpoint = min(firsts.values())
    assert best is not None, f"no answer instead of {first}"
    assert (best[0].id, best[1].epoch) == (trial, epoch), f"{best[0].id} epoch {best[1].epoch} instead of {first}"
    assert not checkpoint or (world.folder / checkpoint).is_dir(), f"the best checkpoint is gone: {checkpoint}"


def check_repeats(e, events, repeats, found):
    """The settings that train again are the best of those that had been found when the first of them was suggested."""
    first = next(n for n, event in enumerate(events) if event.get("confirms"))
    num_before = sum(event["event"] == "report" for event in events[:first])
    best = {}
    for loss, order, trial, *_ in sorted(found):
        if trial not in repeats and order < num_before:
            best.setdefault(trial, (loss, order))
    assert set(repeats.values()) <= set(list(best)[: e.confirm]), f"{repeats} instead of {list(best)}"


def kept(accuracy):
    return accuracy is None or accuracy >= 0.2


def check_amounts(world, events, record, state):
    """Never too many trials at once, nor more than the budget; and all that was asked for."""
    plan, e = world.plan, record.experiment
    counts = Counter(event["event"] for event in events)
    if e.scheduler == "pbt":
        pass  # it takes all slots
    elif not plan.phases[0].get("address"):
        assert world.most_training <= plan.concurrent, f"{world.most_training} trained at once"
    elif e.max_concurrent_trials:
        assert world.most_training <= e.max_concurrent_trials, f"{world.most_training} trained at once"
    lost = (event for event in events if event.get("will_retry") and event["kind"] == "worker_lost")
    retries = Counter(event["trial"] for event in lost)
    assert max(retries.values(), default=0) <= e.max_failures, f"{retries} retries of {e.max_failures}"
    searched = [trial for trial in record.trials if not trial.confirms]
    if e.epoch_budget:
        most = (
            max(e.epoch_budget, 1.02 * e.epoch_budget + 1)
            + plan.concurrent * counts["experiment_resumed"]
            + plan.concurrent
        )
        assert counts["report"] <= most, f"{counts['report']} epochs with a budget of {e.epoch_budget}"
    repeats = [trial for trial in record.trials if trial.confirms]
    if plan.exact and e.confirm and 2 * e.confirm * e.confirm_seeds * e.max_epochs <= e.epoch_budget:
        if any(trial.best(e.aim) and not trial.violation(e.aim) for trial in searched):
            settings, needed = Counter(trial.confirms for trial in repeats), e.confirm * e.confirm_seeds * e.max_epochs
            left = e.epoch_budget - sum(len(trial.reports) for trial in searched)
            # A trial starts if its mean length leaves enough; it may be longer.
            assert settings and left > needed - e.max_epochs, f"{left} epochs are left for {settings}"
            if left >= needed:
                assert set(settings.values()) == {e.confirm_seeds}, f"the budget confirms only {settings}"
    if record.state == "finished" and not e.budgets:
        assert len(searched) == e.num_samples or e.searcher == "grid", f"{len(searched)} trials"
        left = {trial: each for trial, each in state.items() if each not in ("completed", "pruned", "failed")}
        assert not left, f"trials that have not ended: {left}"
        settings = Counter(trial.confirms for trial in repeats)
        assert set(settings.values()) <= {e.confirm_seeds}, settings


def check(world):
    plan = world.plan
    events, record = read(world.folder / "journal.jsonl"), load(world.folder)
    check_curves(plan, events)
    state = check_lives(plan, events)
    check_decisions(events, record.experiment, plan.saves)
    check_answer(world, events, record)
    check_amounts(world, events, record, state)


def check_seed(seed, folder):
    """Runs a seed's search and checks it; an error says what the seed chose."""
    plan, world = plan_of(seed), None
    try:
        world = simulate(plan, folder)
        check(world)
        if plan.exact and plan.stops:
            outcome = outcome_of(world.folder)
            whole = outcome_of(simulate(plan, folder, troubled=False).folder)
            assert outcome == whole, difference(outcome, whole)
    except BaseException as error:
        error.add_note(
            f"{plan}\n  {'; '.join(world.notes) if world else ''}\n  SEED={seed} python -m pytest {__file__}"
        )
        raise


def difference(outcome, whole):
    for number, (own, other) in enumerate(zip(outcome[0], whole[0], strict=False)):
        if own != other:
            return f"event {number} is {own}\ninstead of {other}"
    return f"{len(outcome[0])} events instead of {len(whole[0])}; ends {outcome[1]} instead of {whole[1]}"
