"""What the service shows, recomputed from the journal's lines by code that shares nothing with the project's.

Each search has its own random curves: with ties, infinities, NaN, zeros and huge values, failures and killed drivers.
"""

import contextlib
import json
import math
import random
import re
import zlib
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest
from fastapi.testclient import TestClient
from ray.exceptions import RayTaskError
from ray.tune import CheckpointConfig
from tiers import further
from workerless import Worker, Workerless, run

from tuner.errors import RequestError
from tuner.record.events import sealed
from tuner.record.results import load
from tuner.record.saved_experiment import save_experiment
from tuner.serve.app import create_app
from tuner.spec.experiment import PAIRS, Experiment
from tuner.spec.resources import Resources
from tuner.views.figures import importance, parallel

URL = "http://127.0.0.1:8800"
# --- an independent reader -------------------------------------------------------------------------------------------


def number(value):
    """A number of the journal or of an answer: both write nan and infinity as texts."""
    return float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None


def usable(value):
    value = number(value)
    return value is not None and math.isfinite(value)


class OneTrial:
    """One trial, from the lines that name it."""

    def __init__(self):
        self.status, self.config, self.errors, self.reason, self.resources = "suggested", {}, [], "", {}
        self.values = {}  # epoch -> the value of its last report, in the order of the epochs' first reports
        self.times = {}  # epoch -> the time of its last report
        self.checkpoints = {}
        self.decisions = []
        self.runs = []  # [start, end] of each time on a worker
        self.between = []  # seconds from each report to the next one of the same run
        self.is_running = False

    def best(self, sign, epochs=None):
        """The epoch of the best finite value, the earliest of equal ones; None without any."""
        known = [e for e, v in self.values.items() if usable(v) and (epochs is None or e in epochs)]
        return min(known, key=lambda epoch: sign * number(self.values[epoch]), default=None)


class Recomputed:
    """All that a journal says about a search."""

    def __init__(self, folder, metric="loss", mode="min"):
        self.folder, self.sign = folder, 1 if mode == "min" else -1
        self.lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
        self.trials = defaultdict(OneTrial)
        self.sessions, self.bests = [], []  # [begin, end] of each; (number of reports, value, time) of each new best
        arrived, reported = 0, {}
        for line in self.lines:
            kind, time, name = line["event"], line["time"], line.get("trial")
            if kind in ("experiment_started", "experiment_resumed"):
                self.sessions.append([time, time])
            self.sessions[-1][1] = time
            if name is None:
                continue
            trial = self.trials[name]
            trial.config = line.get("config", trial.config)
            if kind == "trial_started":
                trial.status, trial.reason, trial.is_running = "running", "", True
                trial.resources = line["resources"]
                trial.runs.append([time, time])
                reported[name] = None
            if trial.is_running and kind in ("report", "trial_failed", "trial_ended"):
                trial.runs[-1][1] = time
            if kind == "report":
                if trial.is_running and reported.get(name):
                    trial.between.append(time - reported[name])
                reported[name] = time
                arrived += 1
                epoch, value = line["epoch"], line["metrics"].get(metric)
                trial.values[epoch], trial.times[epoch] = value, time
                trial.checkpoints[epoch] = line.get("checkpoint")
                if usable(value) and (not self.bests or self.sign * value < self.sign * self.bests[-1][1]):
                    self.bests.append((arrived, number(value), time))
            elif kind == "decision":
                trial.decisions.append(line)
                if line["action"] == "pause":
                    trial.status, trial.reason, trial.is_running = "paused", line["reason"], False
                elif line["action"] == "continue" and trial.status == "paused":
                    trial.reason = f"waits for a worker: {line['reason']}"
            elif kind == "trial_failed":
                trial.errors.append(line["error"])
                trial.is_running = False
            elif kind == "trial_ended":
                trial.is_running = False
                if (trial.status, line["status"]) != ("paused", "interrupted"):
                    trial.status, trial.reason = line["status"], line["reason"]
        if self.lines[-1]["event"] != "experiment_finished":  # nobody runs it any more
            for trial in self.trials.values():
                trial.status = "interrupted" if trial.status == "running" else trial.status

    def winner(self):
        """The best of the values whose checkpoint exists; of all values if none does."""
        for only_saved in (True, False):
            known = []
            for name, trial in self.trials.items():
                saved = {e for e, path in trial.checkpoints.items() if path and (self.folder / path).exists()}
                epoch = trial.best(self.sign, saved if only_saved else None)
                if epoch is not None:
                    known.append((self.sign * number(trial.values[epoch]), trial.times[epoch], name, epoch))
            if known:
                return min(known)[2:]
        return None

    def rungs(self):
        """(band, bracket, rung) -> trial -> its last decision there."""
        rungs = defaultdict(dict)
        for name, trial in self.trials.items():
            for decision in trial.decisions:
                if decision["rung"] is not None:
                    rungs[decision.get("band"), decision["bracket"], decision["rung"]][name] = decision
        return rungs


# --- searches --------------------------------------------------------------------------------------------------------


def strange_curves(seed):
    """A function in the place of a training: the same value for the same seed, trial, setting and epoch."""
    kind = seed % 4

    def learn(trial, setting, epoch, way):
        way = zlib.crc32(json.dumps([seed, trial, setting, epoch, way], sort_keys=True).encode())
        chance = random.Random(way)
        value = chance.uniform(-1, 1) + 3 / epoch
        if kind == 1:  # ties
            value = float(chance.randint(0, 3))
        elif kind == 2:
            value = chance.choice([value] * 12 + [math.nan, math.inf, -math.inf, 0.0, 1e300, -1e300, 10**18])
        return way, value

    return learn


def failing(chance, train):
    """The method `train` of a worker, except that one epoch in fifty fails, as by an error of the user's code."""

    def trained(worker):
        if chance.random() < 1 / 50:
            raise RayTaskError("train", "a traceback", ValueError("fails")).as_instanceof_cause()
        return train(worker)

    return trained


@pytest.fixture
def searched(one_ray, tmp_path, monkeypatch):
    """`searched(seed, searcher, scheduler)` runs a search and gives its folder and options."""
    monkeypatch.setattr("ray.tune.execution.tune_controller.RayActorManager", Workerless)
    monkeypatch.setattr("tuner.tuning.assembly.KEEP_BEST_AND_LATEST", CheckpointConfig())
    monkeypatch.setattr("workerless.Resources", lambda cpus, gpus, concurrent, workers: Resources(*costs, concurrent))
    costs = []

    def search(seed, searcher, scheduler):
        chance, folder = random.Random(f"{seed} {searcher} {scheduler}"), tmp_path / "one"
        costs[:] = [(1, 0), (0.5, 0), (3, 0.25), (2, 2)][seed % 4]  # CPUs and GPUs of a trial
        monkeypatch.setattr("workerless.learn", strange_curves(seed))
        monkeypatch.setattr(Workerless, "num_cpus", concurrent := chance.randint(1, 6))
        if seed % 3 == 1:
            monkeypatch.setattr(Worker, "train", failing(chance, Worker.train))
        choices = {
            "searcher": searcher, "scheduler": scheduler, "seed": seed, "mode": chance.choice(["min", "max"]),
            "max_epochs": chance.choice([4, 8, 9]), "reduction_factor": chance.choice([2, 3, 2.5]),
            "num_samples": chance.randint(8, 24), "max_failures": 1,
            "grace_period": chance.choice([1, 2]) if scheduler in ("asha", "median") else 1,
        }  # fmt: skip
        run(folder, concurrent=concurrent, **choices)
        if scheduler != "pbt" and seed % 3 == 2:  # the driver dies, twice: the rest is searched by another one
            for part in (1 / 3, 2 / 3):
                lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
                (folder / "journal.jsonl").write_bytes(b"".join(lines[: max(2, int(len(lines) * part))]))
                run(folder, concurrent=concurrent, **choices)
        slow_down(folder / "journal.jsonl")
        experiment = Experiment(space="tiny.py", results=str(tmp_path), name="one", **choices)
        save_experiment(experiment, folder, {"created": 1000.0, "space": {"params": {}}})
        return folder, experiment

    return search


def slow_down(journal):
    """Makes the search a thousand times as long: its trials take a few milliseconds, which costs round away."""
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    for event in events:
        event["time"] = events[0]["time"] + 1000 * (event["time"] - events[0]["time"])
        del event["crc"]
    journal.write_bytes(b"".join(sealed(json.dumps(event).encode()) for event in events))


@contextlib.contextmanager
def asked(results):
    """`ask(path)` gives the service's answer about the experiment."""
    app = create_app(results)
    client = TestClient(app, base_url=URL)
    try:
        yield lambda path="", of="experiments/one": client.get(f"/api/{of}{path}").raise_for_status().json()
    finally:
        app.state.close() if hasattr(app.state, "close") else None


PLACES = [(searcher, scheduler) for searcher, schedulers in PAIRS.items() for scheduler in schedulers]
# One pair for each scheduler by default; the others differ by their searcher alone.
FIRST = [(n, *pair) for n, pair in enumerate(PLACES) if pair[0] in ("random", "bohb")]
SECOND = [(n, *pair) for n, pair in enumerate(PLACES) if pair[0] not in ("random", "bohb")]
MORE = [(100 + n, *pair) for n, pair in enumerate(PLACES)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # percentiles of infinities
@pytest.mark.parametrize(("seed", "searcher", "scheduler"), [*FIRST, *further(SECOND[::6], 4), *further(MORE)])
def test_every_number_is_that_of_the_journal(searched, monkeypatch, seed, searcher, scheduler):
    folder, experiment = searched(seed, searcher, scheduler)
    truth = Recomputed(folder, mode=experiment.mode)
    assert len(truth.trials) >= 4
    with asked(folder.parent) as ask:
        check_summary(truth, ask(), experiment)
        check_trials(truth, ask("/trials")["trials"])
        answer = ask("/rungs")
        check_rungs(truth, answer["rungs"], experiment)
        check_decisions(truth, answer["decisions"])
        check_what_if(truth, ask, experiment)
        check_costs(truth, ask, experiment)
        for number_of_audit in range(6):
            audit = audited(truth, random.Random(f"{seed} {number_of_audit}"))
            (folder / "audit.json").write_text(json.dumps(audit))
            check_audit(truth, ask, audit)
    check_importance(truth, experiment, monkeypatch)
    check_rules(truth, experiment)


# --- what is compared ------------------------------------------------------------------------------------------------


def same(a, b):
    """Whether two numbers or missing ones are equal; NaN equals NaN."""
    a, b = number(a), number(b)
    return (a is None) == (b is None) and (a is None or a == b or (math.isnan(a) and math.isnan(b)))


def check_summary(truth, summary, experiment):
    statuses = Counter(trial.status for trial in truth.trials.values())
    assert {status: n for status, n in summary["counts"].items() if n} == dict(statuses)
    reports = sum(line["event"] == "report" for line in truth.lines)
    assert summary["epochs"] + summary["repeated_epochs"] == reports
    assert summary["epochs"] == sum(list(trial.values)[-1] for trial in truth.trials.values() if trial.values)
    assert summary["took_s"] == pytest.approx(sum(end - begin for begin, end in truth.sessions), abs=0.06)
    assert summary["lines"] == len(truth.lines)
    best, winner = summary["best"], truth.winner()
    if winner is None:
        assert best is None
    else:
        trial, epoch = winner
        assert (best["trial"], best["epoch"]) == (trial, epoch)
        assert best["value"] == truth.trials[trial].values[epoch] and best["config"] == truth.trials[trial].config


def check_trials(truth, rows):
    assert [row["trial"] for row in rows] == list(truth.trials)
    for row in rows:
        trial = truth.trials[row["trial"]]
        epoch = trial.best(truth.sign)
        assert (row["status"], row["reason"], row["errors"]) == (trial.status, row["reason"], trial.errors)
        assert trial.status == "interrupted" or row["reason"] == trial.reason
        assert (row["best_epoch"], row["config"]) == (epoch, trial.config)
        assert same(row["best"], None if epoch is None else trial.values[epoch])
        last = list(trial.values)[-1] if trial.values else 0
        assert row["epochs"] == last and same(row["last"], trial.values.get(last))
        assert row["seconds"] == pytest.approx(sum(end - start for start, end in trial.runs), abs=0.002)
        stops = [decision for decision in trial.decisions if decision["action"] == "stop"]
        assert row["rung"] == (stops[-1]["rung"] if stops else None)


def check_rungs(truth, rows, experiment):
    rungs = truth.rungs()
    assert {(row["band"], row["bracket"], row["rung"]) for row in rows} == set(rungs) and len(rows) == len(rungs)
    for row in rows:
        there = rungs[row["band"], row["bracket"], row["rung"]]
        actions = Counter()
        for name, decision in there.items():
            waits = decision["action"] == "pause" and list(truth.trials[name].values)[-1] <= decision["epoch"]
            actions["waiting" if waits else "stopped" if decision["action"] == "stop" else "went_on"] += 1
        assert row["came"] == len(there)
        assert {name: row[name] for name in ("waiting", "stopped", "went_on")} == {
            name: actions[name] for name in ("waiting", "stopped", "went_on")
        }
        values = [number(d["value"]) for d in there.values() if usable(d["value"])]
        assert same(
            row["best"], truth.sign * min((truth.sign * v for v in values), default=math.nan) if values else None
        )
        if experiment.scheduler == "asha" and values:
            share = 100 / experiment.reduction_factor
            if truth.sign < 0:
                share = 100 - share
            now = np.percentile(values, share)
            assert number(row["cutoff_now"]) == pytest.approx(now, rel=1e-12)
            passing = sum(truth.sign * v <= truth.sign * number(row["cutoff_now"]) for v in values)
            assert row["would_pass_now"] == passing
        latest = [d for d in all_decisions(truth) if place(d) == (row["band"], row["bracket"], row["rung"])]
        latest = [d for d in latest if d["cutoff"] is not None]
        if latest:
            most = max(d["recorded"] for d in latest)
            assert any(same(row["cutoff_then"], d["cutoff"]) for d in latest if d["recorded"] == most)
        else:
            assert row["cutoff_then"] is None


def place(decision):
    return decision.get("band"), decision["bracket"], decision["rung"]


def all_decisions(truth):
    return [line for line in truth.lines if line["event"] == "decision"]


def check_decisions(truth, rows):
    named = ("trial", "epoch", "action", "reason", "rung")
    shown = Counter((*(row[name] for name in named), str(number(row["value"]))) for row in rows)
    assert shown == Counter(
        (*(line[name] for name in named), str(number(line.get("compared", line["value"]))))
        for line in all_decisions(truth)
    )
    margins = []
    for row in rows:
        known = usable(row["value"]) and usable(row["cutoff"])
        margin = abs(number(row["value"]) - number(row["cutoff"])) if known else None
        known = margin is not None and math.isfinite(margin)
        assert same(row["margin"], margin if known else None)
        margins.append(margin if known else math.inf)
    assert margins == sorted(margins)


# --- costs -----------------------------------------------------------------------------------------------------------


def check_costs(truth, ask, experiment):
    """Each trial's seconds on its CPUs and GPUs; those of the search; and what pruning saved."""
    seconds = {name: sum(end - start for start, end in trial.runs) for name, trial in truth.trials.items()}
    epochs = {name: list(trial.values)[-1] if trial.values else 0 for name, trial in truth.trials.items()}
    for name, trial in list(truth.trials.items())[::4]:
        shown = ask(f"/trials/{name}")["cost"]
        pattern = r"(\d+) epochs? in (\S+) s(?: \((\S+) s per epoch\))? on (?:(\S+) GPU, )?(\S+) CPU: (\S+) (.PU)-s.*"
        trained, took, each, gpus, cpus, cost, unit = re.fullmatch(pattern, shown).groups()
        assert int(trained) == len(trial.values)
        assert float(took) == pytest.approx(seconds[name], rel=0.006, abs=0.001)
        if len(trial.values) > 1:
            assert float(each) == pytest.approx(seconds[name] / len(trial.values), rel=0.006, abs=0.001)
        assert float(gpus or 0) == trial.resources.get("GPU", 0) and float(cpus) == trial.resources.get("CPU", 0)
        assert unit == ("GPU" if trial.resources.get("GPU") else "CPU")
        assert float(cost) == pytest.approx(seconds[name] * trial.resources.get(unit, 0), rel=0.006, abs=0.001)
    (row,) = ask("?name=one", of="compare")["experiments"]
    assert row["worker_s"] == pytest.approx(sum(seconds.values()), abs=0.01)
    assert row["epochs"] == sum(line["event"] == "report" for line in truth.lines)
    assert row["trials"] == len(truth.trials)
    if truth.bests:
        arrived, value, time = truth.bests[-1]
        before = [end - begin for begin, end in truth.sessions if end < time]
        begun = max(begin for begin, _ in truth.sessions if begin <= time)
        assert (row["best_epochs"], row["best_s"]) == (arrived, pytest.approx(sum(before) + time - begun, abs=0.01))
        assert row["best_trials"] == sum(trial.runs[0][0] <= time for trial in truth.trials.values() if trial.runs)
    check_savings(ask("/changes")["verdict"], truth, experiment, epochs)


def check_savings(verdict, truth, experiment, epochs):
    """A trial that a rule stopped saved the epochs that it did not train, each as long as the time between its reports.

    A trial without such a time counts at the median of the trials' times.
    """
    own = {name: sum(trial.between) / len(trial.between) for name, trial in truth.trials.items() if trial.between}
    usual = float(np.median(list(own.values()))) if own else 0.0
    lasts = {name: trial.decisions[-1:] for name, trial in truth.trials.items() if trial.status == "pruned"}
    # The record does not say that the space is a task: only completed trials tell how long a trial is.
    known = any(trial.status == "completed" for trial in truth.trials.values())
    pruned = [name for name, last in lasts.items() if known and last and last[0]["rung"] is not None]
    saved = sum(experiment.max_epochs - epochs[name] for name in pruned)
    saved_s = sum((experiment.max_epochs - epochs[name]) * own.get(name, usual) for name in pruned)
    assert verdict["epochs_saved"] == saved
    assert verdict["seconds_saved"] == pytest.approx(saved_s, rel=1e-4, abs=0.01 * len(truth.trials))
    text = "".join(point["text"] for point in verdict["points"] if point["term"] == "saved")
    assert bool(text) == bool(saved)
    if saved and own:
        whole = sum(epochs.values()) + saved
        units = {"s": 1, "min": 60, "h": 3600}
        number_of, of, hours, unit = re.search(r"([\d,]+) of ([\d,]+) epochs .* and (\S+) (s|min|h) on", text).groups()
        assert (int(number_of.replace(",", "")), int(of.replace(",", ""))) == (saved, whole)
        shown_s = float(hours.replace(",", "")) * units[unit]
        assert shown_s == pytest.approx(verdict["seconds_saved"], rel=0.06, abs=0.5 * units[unit])


# --- the audit -------------------------------------------------------------------------------------------------------


def audited(truth, chance):
    """What an audit could have written: some trials with their best value, also of trials that no rule had pruned."""
    names, winner = list(truth.trials), truth.winner()
    sample = chance.sample(names, chance.randint(0, len(names)))
    best = number(truth.trials[winner[0]].values[winner[1]]) if winner else 0.0
    values = [None, best, best - 1e-3 * abs(best), best + 1e-3 * abs(best), -5.0, 5.0]
    rest = {"stopped": 1, "epochs": 4, "best_epoch": 2, "differs": "", "seconds": 1.0}
    trials = [{"trial": n, "best": chance.choice(values), "beats": chance.random() < 0.5, **rest} for n in sample]
    for trial in trials[::3]:
        trial["differs"] = "epoch 1: another value"
    former = winner[0] if winner and chance.random() < 0.5 else names[0]
    return {"winner": former, "seed": 0, "sample": sample, "trials": trials}


def check_audit(truth, ask, audit):
    """How many of all pruned trials would beat the best one, from a sample of them drawn without replacement."""
    result, winner = ask("/audit")["result"], truth.winner()
    if winner is None:
        assert result is None
        return
    best = truth.sign * number(truth.trials[winner[0]].values[winner[1]])
    by_rule = {
        name
        for name, trial in truth.trials.items()
        if name != winner[0] and trial.status == "pruned" and trial.decisions[-1:] and trial.decisions[-1]["rung"]
    }
    done = {trial["trial"]: trial for trial in audit["trials"] if trial["trial"] in by_rule}
    beat = sum(trial["best"] is not None and truth.sign * trial["best"] < best for trial in done.values())
    fewest, most = interval(beat, len(done), len(by_rule))
    assert {name: result[name] for name in ("winner", "pruned", "asked", "done", "beat", "matching", "stale")} == {
        "winner": winner[0], "pruned": len(by_rule), "asked": len(audit["sample"]), "done": len(done), "beat": beat,
        "matching": sum(not trial["differs"] for trial in done.values()), "stale": audit["winner"] != winner[0],
    }  # fmt: skip
    assert result["low"] == pytest.approx(fewest / max(1, len(by_rule)))
    assert result["high"] == pytest.approx(most / max(1, len(by_rule)))
    if done:
        assert f" {most} would beat it" in result["estimate"]


def interval(beat, done, whole):
    """The numbers of winners among `whole` trials under which `beat` of `done` is in neither tail of 2.5 %."""

    def chance(winners, hits):
        ways = sum(math.comb(winners, k) * math.comb(whole - winners, done - k) for k in hits if k <= done)
        return Fraction(ways, math.comb(whole, done))

    tail = Fraction(25, 1000)
    likely = [
        winners
        for winners in range(beat, whole - (done - beat) + 1)
        if chance(winners, range(beat, done + 1)) > tail and chance(winners, range(beat + 1)) > tail
    ]
    return min(likely), max(likely)


# --- importance ------------------------------------------------------------------------------------------------------


def check_importance(truth, experiment, monkeypatch):
    """What the forests get: which trials, which value of each, and which parameters."""
    grown = []

    def forest(x, y, seed):
        grown.append((x, y))
        return np.arange(x.shape[1], 0, -1), 0.5  # the first column matters most

    monkeypatch.setattr(importance, "_one_forest", forest)
    monkeypatch.setattr(importance, "LEAST_TRIALS", 4)
    monkeypatch.setattr(parallel, "MOST_LINES", 9)  # of more trials, every n-th is used, and the best one
    for choice in ("", "best", "last", "2"):
        grown.clear()
        title, compared = inputs(truth, experiment, choice)
        configs = [truth.trials[name].config for name in compared]
        varied = [name for name in configs[0] if len({config[name] for config in configs}) > 1] if configs else []
        distinct = sorted(set(compared.values()))
        try:
            found = importance.importance_of(load(truth.folder), choice)
        except RequestError as error:
            assert len(compared) < 4 or not varied or len(distinct) < 2, error
            assert not grown
            continue
        assert (found.names, found.trials, found.values) == (varied, len(compared), title)
        for x, y in grown:
            assert y.tolist() == [distinct.index(value) / (len(distinct) - 1) for value in compared.values()]
            assert x.shape == (len(compared), len(varied))
            for name, column in zip(varied, x.T, strict=True):  # in the order of the values, whatever the scale
                order = sorted({config[name] for config in configs})
                assert [sorted(set(column)).index(place) for place in column] == [
                    order.index(config[name]) for config in configs
                ]


def inputs(truth, experiment, choice):
    """Which value is compared, and trial -> that value, in the order of the trials."""
    known = {name: trial for name, trial in truth.trials.items() if trial.best(truth.sign) is not None}
    if not choice:
        choice = "best"
        reached = [list(trial.values)[-1] for trial in known.values()]
        shared = [e for e in reached if sum(other >= e for other in reached) * 10 >= len(reached) * 9]
        if shared and any(trial.status == "pruned" for trial in truth.trials.values()):
            choice = str(max(shared))  # the last epoch that nine of ten trials reached
    compared = {}
    for name, trial in known.items():
        epoch = {"best": trial.best(truth.sign), "last": list(trial.values)[-1]}.get(choice)
        epoch = int(choice) if epoch is None else epoch
        if usable(trial.values.get(epoch)):
            compared[name] = number(trial.values[epoch])
    winner, every = truth.winner(), math.ceil(len(compared) / 9) or 1
    kept = {name for i, name in enumerate(compared) if i % every == 0 or (winner and name == winner[0])}
    title = f"{choice} loss" if choice in ("best", "last") else f"loss at epoch {choice}"
    return title, {name: value for name, value in compared.items() if name in kept}


# --- the rules, written anew -----------------------------------------------------------------------------------------


def check_rules(truth, experiment):
    """Each decision follows from the reports before it."""
    values, arrived = defaultdict(dict), defaultdict(list)
    at_rung, decided, best = defaultdict(dict), set(), {}
    # A trial that failed leaves the medians of its later epochs until it reaches them again.
    is_restarted = any(trial.errors or len(trial.runs) > 1 for trial in truth.trials.values())
    for line in truth.lines:
        name = line.get("trial")
        if line["event"] == "report":
            value = line["metrics"].get("loss")
            values[name][line["epoch"]] = value
            if (name, line["epoch"]) not in decided and usable(value):
                own = truth.sign * number(value)
                arrived[name].append((line["epoch"], own))
                best[name] = min(best.get(name, math.inf), own)
        if line["event"] == "trial_ended" and values[name] and usable(list(values[name].values())[-1]):
            arrived[name] += arrived[name][-1:]  # Ray's median counts the last report of an ended trial twice
        if line["event"] != "decision":
            continue
        decided.add((name, line["epoch"]))
        own = values[name][line["epoch"]]
        if line["rung"] is None:
            continue
        if experiment.scheduler == "asha":
            check_asha(truth, experiment, line, own, at_rung[line["bracket"], line["rung"]])
        elif experiment.scheduler == "median" and not is_restarted:
            check_median(truth, experiment, line, arrived, best)
    if experiment.scheduler == "asha":
        check_that_each_rung_was_compared(truth, experiment)
    if experiment.scheduler in ("hyperband", "bohb"):
        check_halvings(truth)


def check_asha(truth, experiment, line, own, there):
    """Li et al., MLSys 2020, as Ray has it: worse than the best 1/eta of the values that came before is stopped."""
    assert same(line["value"], own) and line["recorded"] == len(there)
    rewards = [-truth.sign * value for value in there.values()]
    cutoff = np.percentile(rewards, (1 - 1 / experiment.reduction_factor) * 100) if rewards else None
    if cutoff is None:
        assert line["cutoff"] is None and line["action"] == "continue"
    else:
        assert number(line["cutoff"]) == pytest.approx(-truth.sign * cutoff, rel=1e-9, abs=1e-12)
        stops = truth.sign * number(own) > truth.sign * number(line["cutoff"])
        assert line["action"] == ("stop" if stops else "continue")
    there[line["trial"]] = number(own)


def check_that_each_rung_was_compared(truth, experiment):
    rungs = [experiment.grace_period * experiment.reduction_factor**k for k in range(20)]
    for trial in truth.trials.values():
        compared = {d["rung"] for d in trial.decisions if d["rung"] is not None}
        ended = {d["epoch"] for d in trial.decisions if d["rung"] is None}  # diverged, or trained to the end
        reached = max((epoch for epoch in trial.values if epoch not in ended), default=0)
        expected = {rung for rung in rungs if rung <= reached and math.ceil(rung) < experiment.max_epochs}
        assert {math.ceil(rung) for rung in compared} == {math.ceil(rung) for rung in expected}


def check_what_if(truth, ask, experiment):
    """The search's own rules repeat each stop; under other rules of ASHA each trial ends as a replay by hand says."""
    own = [("", 1, 2)] if experiment.scheduler in ("asha", "median", "hyperband", "fifo") else []  # others: refused
    for scheduler, grace, factor in (*own, ("asha", 1, 3), ("asha", 2, 2)):
        answer = ask(f"/what-if?scheduler={scheduler}&grace_period={grace}&reduction_factor={factor}")["outcome"]
        assert answer["epochs_recorded"] == sum(max(t.values, default=0) for t in truth.trials.values())
        stops = [
            d for d in all_decisions(truth) if d["action"] == "stop" and truth.trials[d["trial"]].status == "pruned"
        ]
        by_rule = {d["trial"] for d in stops if d["rung"] is not None}
        if own:
            assert answer["reproduced"] == answer["stopped_recorded"] == len(by_rule)
        if scheduler == "asha" and not any(len(trial.runs) > 1 for trial in truth.trials.values()):
            fates = {fate["trial"]: fate for fate in answer["fates"]}
            for name, (outcome, epochs) in replayed(truth, experiment, grace, factor).items():
                assert (fates[name]["outcome"], fates[name]["epochs"]) == (outcome, epochs), name


def replayed(truth, experiment, grace, factor):
    """ASHA with one bracket over the recorded reports, as they arrived: how each trial ends, and after which epoch."""
    recorded, ended = defaultdict(dict), {}
    for line in truth.lines:
        name = line.get("trial")
        if line["event"] != "report" or name in ended:
            continue
        epoch, value, trial = line["epoch"], line["metrics"]["loss"], truth.trials[name]
        rungs = [grace * factor**k for k in range(20) if grace * factor**k <= min(epoch, experiment.max_epochs)]
        rungs = [rung for rung in rungs if name not in recorded[rung]]
        is_over = epoch >= experiment.max_epochs or (
            trial.status in ("completed", "failed") and epoch == max(trial.values)
        )
        if not usable(value):
            ended[name] = "ended", epoch
        elif epoch < experiment.max_epochs and rungs:
            reward, others = -truth.sign * number(value), recorded[rungs[-1]]
            if others and reward < np.percentile(list(others.values()), (1 - 1 / factor) * 100):
                ended[name] = "stopped", epoch
            others[name] = reward
        if is_over:
            ended.setdefault(name, ("ended", epoch))
    for name, trial in truth.trials.items():
        is_known = trial.status in ("completed", "failed") or not trial.values
        ended.setdefault(name, ("ended" if is_known else "unknown", max(trial.values, default=0)))
    return ended


def check_median(truth, experiment, line, arrived, best):
    """Golovin et al., KDD 2017, as Ray has it: a trial's best against the median of the others' running means."""
    means = []
    for name, curve in arrived.items():
        before = [value for epoch, value in curve if experiment.grace_period <= epoch <= line["epoch"]]
        if name != line["trial"] and before and max(epoch for epoch, _ in curve) >= line["epoch"]:
            means.append(float(np.mean(before)))
    assert line["recorded"] == len(means)
    if len(means) < 3:
        assert line["cutoff"] is None and line["action"] == "continue"
        return
    assert number(line["cutoff"]) == pytest.approx(truth.sign * float(np.median(means)), rel=1e-9)
    stops = best[line["trial"]] > truth.sign * number(line["cutoff"])
    assert line["action"] == ("stop" if stops else "continue")
    assert same(line["compared"], truth.sign * best[line["trial"]])


def check_halvings(truth):
    """Li et al., JMLR 2018: of a bracket's trials at a rung, those that go on are at least as good as the cutoff."""
    for there in truth.rungs().values():
        stops = {n: d for n, d in there.items() if d["action"] == "stop" and d["cutoff"] is not None}
        went_on = [d for n, d in there.items() if d["action"] != "stop"]
        went_on = [d for d in went_on if list(truth.trials[d["trial"]].values)[-1] > d["epoch"]]
        for decision in stops.values():
            assert truth.sign * number(decision["value"]) >= truth.sign * number(decision["cutoff"])
            assert decision["recorded"] + 1 <= len(there)
            assert same(decision["cutoff"], next(iter(stops.values()))["cutoff"])
        for decision in went_on:
            assert not stops or truth.sign * number(decision["value"]) <= truth.sign * number(
                next(iter(stops.values()))["cutoff"]
            )
