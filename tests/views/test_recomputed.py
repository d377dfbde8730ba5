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

import numpy as np
import pytest
from fastapi.testclient import TestClient
from tiers import further
from workerless import KEPT, MANAGER, Worker, Workerless, failing, run

from tuner.record.events import sealed
from tuner.record.saved_experiment import save_experiment
from tuner.serve.app import create_app
from tuner.spec.experiment import PAIRS, Experiment
from tuner.spec.resources import Resources

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
        self.sessions = []  # [begin, end] of each
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
            if trial.is_running and kind in ("report", "trial_failed", "trial_ended"):
                trial.runs[-1][1] = time
            if kind == "report":
                epoch, value = line["epoch"], line["metrics"].get(metric)
                trial.values[epoch], trial.times[epoch] = value, time
                trial.checkpoints[epoch] = line.get("checkpoint")
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


@pytest.fixture
def searched(one_ray, tmp_path, monkeypatch):
    """`searched(seed, searcher, scheduler)` runs a search and gives its folder and options."""
    monkeypatch.setattr(MANAGER, Workerless)
    monkeypatch.setattr(*KEPT)
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
def test_every_number_is_that_of_the_journal(searched, seed, searcher, scheduler):
    folder, experiment = searched(seed, searcher, scheduler)
    truth = Recomputed(folder, mode=experiment.mode)
    assert len(truth.trials) >= 4
    check_by_hand(truth, experiment)
    with asked(folder.parent) as ask:
        check_summary(truth, ask(), experiment)
        check_trials(truth, ask("/trials")["trials"])
        answer = ask("/rungs")
        check_rungs(truth, answer["rungs"], experiment)
        check_decisions(truth, answer["decisions"])
        check_what_if(truth, ask, experiment)
        check_costs(truth, ask, experiment)


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
    if (winner := truth.winner()) is None:
        assert summary["best"] is None
    else:
        trial = truth.trials[winner[0]]
        of = {"trial": winner[0], "epoch": winner[1], "value": trial.values[winner[1]], "config": trial.config}
        assert summary["best"] == of


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
            actions["waiting" if waits else "stopped" if decision["action"] == "stop" else "continued"] += 1
        assert row["reached"] == len(there)
        assert all(row[name] == actions[name] for name in ("waiting", "stopped", "continued"))
        values = [number(d["value"]) for d in there.values() if usable(d["value"])]
        assert same(row["best"], truth.sign * min(truth.sign * v for v in values) if values else None)
        if experiment.scheduler == "asha" and values:
            share = 100 / experiment.reduction_factor
            now = np.percentile(values, share if truth.sign > 0 else 100 - share)
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


def check_by_hand(truth, experiment):
    """Each decision of asha and median, from all values before it."""
    sign, factor, grace = truth.sign, experiment.reduction_factor, experiment.grace_period
    at, losses, last, checked = defaultdict(dict), defaultdict(list), defaultdict(int), 0  # at: rung -> trial -> loss
    for line in truth.lines if experiment.scheduler in ("asha", "median") else ():
        name, epoch = line.get("trial"), line.get("epoch", 0)
        if experiment.scheduler == "median" and line["event"] == "trial_ended" and line["status"] == "pruned":
            if usable(truth.trials[name].values[last[name]]) and last[name] >= grace:
                losses[name].append(losses[name][-1])  # as in Ray, the last value counts twice
                at[last[name]][name] = np.mean(losses[name][grace - 1 :])
        if line["event"] != "report" or epoch <= last[name]:
            continue
        last[name], value = epoch, line["metrics"]["loss"]
        if not usable(value) or epoch >= experiment.max_epochs:
            continue
        loss, rung, cutoff = sign * number(value), epoch, None
        losses[name].append(loss)
        if experiment.scheduler == "asha":
            new = [rung for k in range(9) if epoch >= (rung := grace * factor**k) and name not in at[rung]]
            rung, known = max(new, default=None), list(at[max(new)].values()) if new else []
            cutoff = -np.percentile([-other for other in known], (1 - 1 / factor) * 100) if known else None
            at[rung][name] = compared = loss
        elif epoch >= grace:
            known, compared = list(at[epoch].values()), min(losses[name])
            cutoff = np.median(known) if len(known) >= 3 else None
            at[epoch][name] = np.mean(losses[name][grace - 1 :])
        else:
            rung = None
        decided = [d for d in truth.trials[name].decisions if d["epoch"] == epoch and d["rung"] is not None]
        assert [d["rung"] for d in decided] == ([] if rung is None else [rung])
        for decision in decided:
            checked += 1
            assert same(decision["cutoff"], cutoff and sign * cutoff)
            worse = cutoff is not None and compared > cutoff
            assert decision["action"] == ("stop" if worse else "continue")
    assert checked or experiment.scheduler not in ("asha", "median")


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
        margins.append(abs(number(row["value"]) - number(row["cutoff"])) if known else math.inf)
        assert same(row["margin"], margins[-1] if math.isfinite(margins[-1]) else None)
    assert margins == sorted(margins)


# --- costs -----------------------------------------------------------------------------------------------------------


def check_costs(truth, ask, experiment):
    """Each trial's seconds on its CPUs and GPUs, and those of the search."""
    seconds = {name: sum(end - start for start, end in trial.runs) for name, trial in truth.trials.items()}
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


def check_what_if(truth, ask, experiment):
    """The search's own rules repeat each stop."""
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
