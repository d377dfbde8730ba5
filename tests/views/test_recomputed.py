"""What the service shows, recomputed from the journal's lines by code that shares nothing with the project's.

Each search has its own random curves: with ties, infinities, NaN, zeros and huge values, failures and killed drivers.
"""

import csv
import io
import json
import math
import random
import zlib
from collections import Counter, defaultdict

import numpy as np
import pytest
from figure_checks import check_curves, check_figures, check_report, check_slices, usable
from journals import lines_of
from tiers import further
from workerless import KEPT, MANAGER, Worker, Workerless, failing, run

from tests.serve.conftest import asking
from tuner.core.events import STATUSES
from tuner.errors import RequestError
from tuner.record.results import load
from tuner.record.saved_experiment import save_experiment
from tuner.serve.app import create_app
from tuner.spec.experiment import PAIRS, Experiment
from tuner.tuning.answer.writing import trials_csv
from tuner.views.report import page

# --- an independent reader -------------------------------------------------------------------------------------------


class OneTrial:
    """One trial, from the lines that name it."""

    def __init__(self):
        self.status, self.config, self.errors, self.reason = "suggested", {}, [], ""
        self.values, self.times, self.checkpoints = {}, {}, {}  # by epoch, of its last report
        self.accuracies = {}  # the other metric, of the reports that have it
        self.attempts, self.has_failed = 0, True  # starts after a failure, the first one included
        self.decisions = []
        self.runs = []  # [start, end] of each time on a worker
        self.is_running = False

    def best(self, sign, epochs=None):
        """The epoch of the best finite value, the earliest of equal ones; None without any."""
        known = [e for e, v in self.values.items() if usable(v) and (epochs is None or e in epochs)]
        return min(known, key=lambda epoch: sign * self.values[epoch], default=None)

    @property
    def shown(self):
        has_diverged = self.status == "pruned" and self.values and not usable(self.values[self.last])
        return "diverged" if has_diverged else self.status

    @property
    def last(self):
        return list(self.values)[-1] if self.values else 0

    @property
    def last_accuracy(self):
        return next((self.accuracies[epoch] for epoch in reversed(self.values) if epoch in self.accuracies), None)

    @property
    def seconds(self):
        return self.seconds_until(math.inf)

    def seconds_until(self, time):
        return sum(min(end, time) - start for start, end in self.runs if start < time)


class Recomputed:
    """All that a journal says about a search."""

    def __init__(self, folder, mode):
        self.folder, self.sign = folder, 1 if mode == "min" else -1
        self.lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
        self.trials = defaultdict(OneTrial)
        self.sessions = []  # [begin, end] of each
        for line in self.lines:
            if line["event"] in ("experiment_started", "experiment_resumed"):
                self.sessions.append([line["time"]] * 2)
            self.sessions[-1][1] = line["time"]
            if "trial" in line:
                self.add(self.trials[line["trial"]], line["event"], line)
        if self.lines[-1]["event"] != "experiment_finished":  # nobody runs it any more
            for trial in self.trials.values():
                trial.status = "interrupted" if trial.status == "running" else trial.status

    def add(self, trial, kind, line):
        trial.config = line.get("config", trial.config)
        if kind == "trial_started":
            trial.status, trial.reason, trial.is_running = "running", "", True
            trial.runs.append([line["time"]] * 2)
            trial.attempts, trial.has_failed = trial.attempts + trial.has_failed, False
        if trial.is_running and kind in ("report", "trial_failed", "trial_ended"):
            trial.runs[-1][1] = line["time"]
        if kind == "report":
            epoch = line["epoch"]
            trial.values[epoch], trial.times[epoch] = line["metrics"].get("loss"), line["time"]
            trial.checkpoints[epoch] = line.get("checkpoint")
            trial.accuracies.pop(epoch, None)
            trial.accuracies |= {epoch: line["metrics"]["accuracy"]} if "accuracy" in line["metrics"] else {}
        elif kind == "decision":
            trial.decisions.append(line)
            if line["action"] == "pause":
                trial.status, trial.reason, trial.is_running = "paused", line["reason"], False
            elif line["action"] == "continue" and trial.status == "paused":
                trial.reason = f"waits for a worker: {line['reason']}"
        elif kind == "trial_failed":
            trial.errors.append(line["error"])
            trial.is_running, trial.has_failed = False, True
        elif kind == "trial_ended":
            trial.is_running = False
            if (trial.status, line["status"]) != ("paused", "interrupted"):
                trial.status, trial.reason = line["status"], line["reason"]

    def events(self, kind):
        return [line for line in self.lines if line["event"] == kind]

    def winner(self):
        """The best of the values whose checkpoint exists; of all values if none does."""
        for only_saved in (True, False):
            known = []
            for name, trial in self.trials.items():
                saved = {e for e, path in trial.checkpoints.items() if path and (self.folder / path).exists()}
                epoch = trial.best(self.sign, saved if only_saved else None)
                if epoch is not None:
                    known.append((self.sign * trial.values[epoch], trial.times[epoch], name, epoch))
            if known:
                return min(known)[2:]
        return None

    def rungs(self):
        """(band, bracket, rung) -> its decisions in the order of the journal."""
        rungs = defaultdict(list)
        for line in self.events("decision"):
            if line["rung"] is not None:
                rungs[line.get("band"), line["bracket"], line["rung"]].append(line)
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
    monkeypatch.setattr("tuner.views.report.importance_of", too_few)  # forests take seconds, and are not checked here
    monkeypatch.setattr("tuner.views.verdict.CLOSE_CALL_SHARE", CLOSE)
    monkeypatch.setattr(MANAGER, Workerless)
    monkeypatch.setattr(*KEPT)

    def search(seed, searcher, scheduler):
        chance, folder = random.Random(f"{seed} {searcher} {scheduler}"), tmp_path / "one"
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
        rewrite(folder / "journal.jsonl")
        experiment = Experiment(space="tiny.py", results=str(tmp_path), name="one", **choices)
        save_experiment(experiment, folder, {"created": 1000.0, "space": {"params": {}}})
        return folder, experiment

    return search


def too_few(record):
    raise RequestError("too few trials")


def rewrite(journal):
    """Makes the search a thousand times as long, and gives most reports another metric.

    Its trials take a few milliseconds, which costs round away.
    """
    events, chance = [json.loads(line) for line in journal.read_text().splitlines()], random.Random(0)
    for event in events:
        if event["event"] == "report" and chance.random() < 0.8:
            event["metrics"]["accuracy"] = chance.choice([chance.random(), chance.random(), "nan"])
        event["time"] = events[0]["time"] + 1000 * (event["time"] - events[0]["time"])
        del event["line"], event["crc"]
    journal.write_bytes(lines_of(*events))


PLACES = [(searcher, scheduler) for searcher, schedulers in PAIRS.items() for scheduler in schedulers]
# One pair for each scheduler by default, but bohb, which takes 10 s; the others differ by their searcher alone.
FIRST = [(n, *pair) for n, pair in enumerate(PLACES) if pair[0] == "random"]
BOHB = [(n, *pair) for n, pair in enumerate(PLACES) if pair[0] == "bohb"]
SECOND = [(n, *pair) for n, pair in enumerate(PLACES) if pair[0] not in ("random", "bohb")]
MORE = [(100 + n, *pair) for n, pair in enumerate(PLACES)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # percentiles of infinities
@pytest.mark.parametrize(("seed", "searcher", "scheduler"), [*FIRST, *further(BOHB + SECOND[::6], 5), *further(MORE)])
def test_every_number_is_that_of_the_journal(searched, seed, searcher, scheduler):
    folder, experiment = searched(seed, searcher, scheduler)
    truth = Recomputed(folder, experiment.mode)
    assert len(truth.trials) >= 4
    app = create_app(folder.parent)
    ask = asking(app, "/api/experiments/one")
    agree([ask()], [summary_of(truth)])
    agree(ask("/trials")["trials"], [trial_row(truth, *each) for each in truth.trials.items()])
    answer = ask("/rungs")
    check_rungs(truth, answer["rungs"], experiment)
    check_decisions(truth, answer["decisions"])
    check_what_if(truth, ask, experiment)
    check_close_calls(truth, ask("/changes")["verdict"])
    check_table(truth, trials_csv(load(folder)))
    check_figures(truth, ask("/figures"), experiment)
    other = ask("/changes?figures=curves&figures=slices&axis=time:accuracy&values=last:accuracy")["figures"]
    check_curves(truth, other["curves"], "accuracy", is_timed=True)
    check_slices(truth, other.get("slices"), {name: trial.last_accuracy for name, trial in truth.trials.items()})
    check_report(truth, page(load(folder)), answer["rungs"], answer["decisions"], experiment)
    spent = {"worker_s": sum(trial.seconds for trial in truth.trials.values()), "trials": len(truth.trials)}
    agree(asking(app, "/api/compare?")("name=one")["experiments"], [{**spent, "epochs": len(truth.events("report"))}])


# --- what is compared ------------------------------------------------------------------------------------------------


DURATIONS = {"took_s": 0.06, "seconds": 0.002, "worker_s": 0.01}  # and by how much they may differ, in seconds


def agree(rows, expected):
    """Compares the fields that are expected of each row."""
    for row, one in zip(rows, expected, strict=True):
        shown = {n: pytest.approx(row[n], abs=DURATIONS[n]) if n in DURATIONS else row[n] for n in one}
        assert one == shown


def summary_of(truth):
    statuses = Counter(trial.shown for trial in truth.trials.values())
    epochs, winner = sum(trial.last for trial in truth.trials.values()), truth.winner()
    best = None
    if winner:
        trial = truth.trials[winner[0]]
        best = {"trial": winner[0], "epoch": winner[1], "value": trial.values[winner[1]], "config": trial.config}
    return {
        "counts": dict.fromkeys(STATUSES, 0) | statuses, "epochs": epochs, "lines": len(truth.lines), "best": best,
        "repeated_epochs": len(truth.events("report")) - epochs,
        "took_s": sum(end - begin for begin, end in truth.sessions),
    }  # fmt: skip


def trial_row(truth, name, trial):
    best = trial.best(truth.sign)
    stops = [decision["rung"] for decision in trial.decisions if decision["action"] == "stop"]
    reason = {} if trial.status == "interrupted" else {"reason": trial.reason}
    return {
        "trial": name, "status": trial.shown, "errors": trial.errors, "config": trial.config, **reason,
        "best_epoch": best, "best": trial.values.get(best), "epochs": trial.last, "last": trial.values.get(trial.last),
        "seconds": trial.seconds, "rung": stops[-1] if stops else None, "attempts": trial.attempts,
        "metrics": {"accuracy": [trial.accuracies.get(best), trial.last_accuracy]} if trial.accuracies else {},
    }  # fmt: skip


def check_rungs(truth, rows, experiment):
    rungs = truth.rungs()
    assert {(row["band"], row["bracket"], row["rung"]) for row in rows} == set(rungs) and len(rows) == len(rungs)
    for row in rows:
        decisions = rungs[row["band"], row["bracket"], row["rung"]]
        last = {decision["trial"]: decision for decision in decisions}
        waits = {n for n, d in last.items() if d["action"] == "pause" and truth.trials[n].last <= d["epoch"]}
        stopped = sum(decision["action"] == "stop" for decision in last.values())
        compared = (decision.get("compared", decision["value"]) for decision in last.values())
        values = [value for value in compared if usable(value)]
        best = truth.sign * min(truth.sign * value for value in values) if values else None
        counts = {"reached": len(last), "waiting": len(waits), "stopped": stopped}
        agree([row], [{**counts, "continued": len(last) - len(waits) - stopped, "best": best}])
        if experiment.scheduler == "asha" and values:
            share = 100 / experiment.reduction_factor
            now = np.percentile(values, share if truth.sign > 0 else 100 - share)
            assert float(row["cutoff_now"]) == pytest.approx(now, rel=1e-12)
            passing = sum(truth.sign * value <= truth.sign * float(row["cutoff_now"]) for value in values)
            assert row["would_pass_now"] == passing
            stops = [d.get("compared", d["value"]) for n, d in last.items() if d["action"] == "stop"
                     and truth.trials[n].status == "pruned"]  # fmt: skip
            now = truth.sign * float(row["cutoff_now"])
            assert row["would_survive"] == sum(usable(v) and truth.sign * v <= now for v in stops)
        known = [decision for decision in decisions if decision["cutoff"] is not None]
        most = max((decision["recorded"] for decision in known), default=None)
        assert row["cutoff_then"] in ([d["cutoff"] for d in known if d["recorded"] == most] or [None])


def check_decisions(truth, rows):
    named = ("trial", "epoch", "action", "reason", "rung")
    made = ((*(line[name] for name in named), line.get("compared", line["value"])) for line in truth.events("decision"))
    assert Counter((*(row[name] for name in named), row["value"]) for row in rows) == Counter(made)
    order = []
    for row in rows:
        known = usable(row["value"]) and usable(row["cutoff"])
        margin = abs(row["value"] - row["cutoff"]) if known else math.inf
        assert row["margin"] == (margin if math.isfinite(margin) else None)
        order.append(math.inf if margin == 0 and row["action"] != "stop" else margin)  # it is its own cutoff
    assert order == sorted(order)


CLOSE = 0.6  # of the interquartile range: with the 5 % of the page, these small searches have no close calls


def check_close_calls(truth, verdict):
    """Pruned trials within CLOSE of the interquartile range of the finite values at their rung, if it has eight."""
    close = {}
    for decisions in truth.rungs().values():
        last = {decision["trial"]: decision for decision in decisions}
        values = [v for d in last.values() if usable(v := d.get("compared", d["value"]))]
        spread = np.subtract(*np.percentile(values, [75, 25])) if len(values) >= 8 else 0.0
        for d in decisions:
            value, is_pruned = d.get("compared", d["value"]), truth.trials[d["trial"]].status == "pruned"
            if d["action"] == "stop" and is_pruned and usable(value) and usable(d["cutoff"]):
                margin = abs(value - d["cutoff"])
                close |= {(d["trial"], d["epoch"]): margin / spread} if margin < CLOSE * spread else {}
    for call in verdict["close_calls"]:
        assert call["share"] == pytest.approx(close[call["trial"], call["epoch"]])
    assert len(verdict["close_calls"]) == min(10, len(close))


def check_table(truth, text):
    """trials.csv: each column has its own name, and the trial's value of that name."""
    head, *rows = csv.reader(io.StringIO(text, newline=""))
    assert len(set(head)) == len(head)
    for cells, (name, trial) in zip(rows, truth.trials.items(), strict=True):
        row, best = dict(zip(head, cells, strict=True)), trial.best(truth.sign)
        found = {"trial": name, "status": trial.shown, "epochs": trial.last, "best_epoch": best, **trial.config}
        found |= {"best_loss": trial.values.get(best), "last_loss": trial.values.get(trial.last)}
        assert {each: row[each].removeprefix("'") for each in found} == {
            each: "" if value is None else str(value) for each, value in found.items()
        }


def check_what_if(truth, ask, experiment):
    """The search's own rules repeat each stop."""
    own = [("", 1, 2)] if experiment.scheduler in ("asha", "median", "hyperband", "fifo") else []  # others: refused
    stops = (line for line in truth.events("decision") if line["action"] == "stop" and line["rung"] is not None)
    by_rule = {line["trial"] for line in stops if truth.trials[line["trial"]].status == "pruned"}
    for scheduler, grace, factor in (*own, ("asha", 1, 3), ("asha", 2, 2)):
        answer = ask(f"/what-if?scheduler={scheduler}&grace_period={grace}&reduction_factor={factor}")["outcome"]
        assert answer["epochs_recorded"] == sum(max(trial.values, default=0) for trial in truth.trials.values())
        if own:
            assert answer["reproduced"] == answer["stopped_recorded"] == len(by_rule)
