"""Compares figures and the tables of report.html with `test_recomputed.Recomputed`; imports nothing of the project."""

import json
import math
import re
from collections import defaultdict
from html.parser import HTMLParser
from itertools import pairwise

import pytest

SEEN = {"rel": 6e-7, "abs": 1e-12}  # report.html has seven digits
SHOWN = {"rel": 5.1e-5, "abs": 1e-12}  # its tables have five
UNITS = {"seconds": 1, "minutes": 60, "hours": 3600}
MARKS = ("band", "cutoff", "stop", "beyond")  # what is in a figure beside the trials' own points


def usable(value):
    return isinstance(value, (int, float)) and math.isfinite(value)


def same(shown, expected, exact=SEEN):
    """Compares numbers, texts and None, alone or in lists and tuples."""
    if isinstance(expected, (list, tuple)):
        assert len(shown) == len(expected), (shown, expected)
        for each in zip(shown, expected, strict=True):
            same(*each, exact)
    elif usable(expected) and not isinstance(expected, bool):
        assert usable(shown) and shown == pytest.approx(expected, **exact)
    else:
        assert shown == expected


def points_of(trace, *columns):
    """The points of trials, without the gaps between curves."""
    rows = zip(*(trace[column] for column in ("customdata", *columns)), strict=True)
    return [row for row in rows if row[0] is not None]


def check_figures(truth, figures, experiment):
    """Checks all figures that a search of few trials with one metric has."""
    text = figures["curves"]["layout"]["meta"]["text"]
    assert text.startswith(f"{len(truth.trials)} trials: ")
    check_curves(truth, figures["curves"])
    check_history(truth, figures.get("history"))
    check_rung_values(truth, figures.get("rung_values"), experiment)
    check_compared(truth, figures)
    check_timeline(truth, figures["timeline"])


def check_curves(truth, figure, metric="loss", is_timed=False):
    winner, drawn = truth.winner(), {}
    for trace in figure["data"]:
        if trace["meta"] not in MARKS:
            for name, *point in points_of(trace, "x", "y"):
                status = truth.trials[name].shown
                usual = "running" if status == "suggested" else status
                assert trace["meta"] == ("best" if winner and name == winner[0] else usual)
                drawn.setdefault(name, []).append(tuple(point))
    unit = UNITS[figure["layout"]["xaxis"]["title"]["text"].split()[0]] if is_timed else None
    expected = {}
    for name, trial in truth.trials.items():
        values = trial.values if metric == "loss" else trial.accuracies
        known = [(epoch, values[epoch] if usable(values[epoch]) else None) for epoch in trial.values if epoch in values]
        if unit:
            known = sorted((trial.seconds_until(trial.times[epoch]) / unit, value) for epoch, value in known)
        expected |= {name: known} if known else {}
    assert set(drawn) == set(expected)  # few trials: all are drawn
    for name, points in expected.items():
        same(drawn[name], points, {"abs": 1e-4} if unit else SEEN)
    if is_timed or metric != "loss":
        assert not any(trace["meta"] in ("band", "cutoff") for trace in figure["data"])
        return
    stops = [point for trace in figure["data"] if trace["meta"] == "stop" for point in points_of(trace, "x", "y")]
    assert len({name for name, *_ in stops}) == len(stops)
    for name, epoch, value in stops:
        last = [line for line in truth.trials[name].decisions if line["action"] == "stop"][-1]
        known = [(e, v) for e, v in truth.trials[name].values.items() if usable(v)]
        assert truth.trials[name].status == "pruned"
        same((epoch, value), (last["epoch"], last["value"]) if usable(last["value"]) else known[-1])


def check_history(truth, figure):
    best, steps, reports = None, [], truth.events("report")
    for number, line in enumerate(reports, 1):
        value = line["metrics"]["loss"]
        if usable(value) and (best is None or truth.sign * value < truth.sign * best):
            best = value
            steps.append((line["trial"], number, value))
    if not steps:
        assert figure is None
        return
    line, *beyond = figure["data"]
    same(points_of(line, "x", "y"), [*steps, (steps[-1][0], len(reports), steps[-1][2])])
    for trace in beyond:
        assert trace["meta"] == "beyond" and set(trace["x"]) <= {number for _, number, _ in steps}
        low, high = figure["layout"]["yaxis"]["range"]
        assert set(trace["y"]) == {high if truth.sign > 0 else low}
        values = [value for _, number, value in steps if number in trace["x"]]
        assert all(value > high if truth.sign > 0 else value < low for value in values)


def check_rung_values(truth, figure, experiment):
    """Checks the dots, the last cutoffs and the numbers in the text; no rung has enough trials for a box."""
    rungs = {}
    for key, decisions in truth.rungs().items():
        last = {decision["trial"]: decision for decision in decisions}
        waits = {n for n, d in last.items() if d["action"] == "pause" and truth.trials[n].last <= d["epoch"]}
        if len(waits) < len(last):
            rungs[key] = last, waits, decisions
    keys = sorted(rungs, key=lambda key: [-1 if part is None else part for part in key])
    number, keys = len(keys), keys[:: max(1, math.ceil(len(keys) / 12))]
    expected = {}
    for place, key in enumerate(keys):
        last, waits, _ = rungs[key]
        for name, decision in last.items():
            value = decision["value"]
            if experiment.scheduler == "median":
                each = truth.trials[name].values.items()
                values = [v for e, v in each if experiment.grace_period <= e <= decision["epoch"] and usable(v)]
                value = sum(v / len(values) for v in values)
            if name not in waits and usable(value):
                expected[name, place] = value, "pruned" if decision["action"] == "stop" else "continued"
    if not expected:
        assert figure is None
        return
    traces, shown = defaultdict(list), {}
    for trace in figure["data"]:
        traces[trace["name"]].append(trace)
    for outcome in ("pruned", "continued"):
        for trace in traces[outcome]:
            for name, x, value in points_of(trace, "x", "y"):
                assert (name, round(x)) not in shown and abs(x - round(x)) < 0.4
                shown[name, round(x)] = value, outcome
    assert {key: outcome for key, (_, outcome) in shown.items()} == {key: out for key, (_, out) in expected.items()}
    for key, (value, _) in expected.items():
        same(shown[key][0], value, SEEN | {"abs": 1e-9})
    layout = figure["layout"]
    check_places(keys, layout["xaxis"])
    marked = {x: y for trace in traces["last cutoff used"] for x, y in zip(trace["x"], trace["y"], strict=True)}
    for place, key in enumerate(keys):
        last, waits, decisions = rungs[key]
        known = [decision for decision in decisions if decision["cutoff"] is not None]
        most = max((decision["recorded"] for decision in known), default=None)
        cutoffs = [d["cutoff"] for d in known if d["recorded"] == most]
        matches = any(marked.get(place) == pytest.approx(cutoff, **SEEN) for cutoff in cutoffs)
        assert matches or not any(map(usable, cutoffs))
        if place < 4:
            stopped = sum(decision["action"] == "stop" for decision in last.values())
            assert f"{stopped} of {len(last)} trials pruned" in layout["meta"]["text"]
    assert ("The plot has" in layout["meta"]["text"]) == (number > len(keys))


def check_places(keys, axis):
    """Each band, bracket and rung has a name of its own, which says what differs between the rungs."""
    names = axis["ticktext"]
    assert len(set(names)) == len(names) == len(keys)
    for name, (band, bracket, rung) in zip(names, keys, strict=True):
        parts = re.fullmatch(r"([\d.]+)(?: \((?:(\d+)\.)?(\d+)\))?", name).groups()
        assert float(parts[0]) == rung
        assert all(int(part) == (own or 0) for part, own in zip(parts[1:], (band, bracket), strict=True) if part)


def check_compared(truth, figures):
    """Checks the value of each trial at the default choice, and where its parameter `lr` is."""
    pruned = any(trial.shown == "pruned" for trial in truth.trials.values())
    lasts = sorted(trial.last for trial in truth.trials.values() if trial.best(truth.sign) is not None)
    epoch, title = (lasts[len(lasts) // 10] if pruned and lasts else None), "best loss"
    expected = {}
    for name, trial in truth.trials.items():
        value = trial.values.get(trial.best(truth.sign))
        if epoch is not None:
            title = f"loss at epoch {epoch}"
            value = next((v for e, v in trial.values.items() if e >= epoch), None)
        if usable(value):
            expected[name] = value
    slices = check_slices(truth, figures.get("slices"), expected)
    if slices is None:
        return
    parallel = figures["parallel"]["data"][0]
    assert slices["layout"]["yaxis"]["title"]["text"].split(" (")[0] == title
    dimensions = {each["label"]: each["values"] for each in parallel["dimensions"]}
    names, own = parallel["customdata"], parallel["dimensions"][-1]
    same(dimensions["lr"], [truth.trials[name].config["lr"] for name in names])
    assert own["label"].split(" (")[0] == title and set(names) == set(expected)
    raw = [expected[name] for name in names]
    if own["label"] == title:
        same(own["values"], raw)
    else:  # outliers lie at the axis's end, where the worst value is that is none
        end = truth.sign * max(truth.sign * value for value in own["values"])
        worse = [truth.sign * value > truth.sign * end for value in raw]
        same(own["values"], [end if is_worse else value for value, is_worse in zip(raw, worse, strict=True)])
        assert any(worse)


def check_slices(truth, figure, values):
    """Checks the value of each trial that has a usable one; returns the figure, if there is one."""
    expected = {name: value for name, value in values.items() if usable(value)}
    if len({truth.trials[name].config["lr"] for name in expected}) < 2:
        return None
    for trace in figure["data"]:
        shown = points_of(trace, "y")
        assert {name for name, _ in shown} == set(expected) and len(shown) == len(expected)
        same([value for _, value in shown], [expected[name] for name, _ in shown])
    return figure


def check_timeline(truth, figure):
    unit = UNITS[figure["layout"]["xaxis"]["title"]["text"].split()[0]]
    runs = sorted((start, end, name) for name, trial in truth.trials.items() for start, end in trial.runs)
    first, winner = runs[0][0], truth.winner()
    longest = max(end - first for _, end, _ in runs)
    bars, rows = defaultdict(list), defaultdict(list)
    for trace in figure["data"]:
        for name, start, length, row in points_of(trace, "base", "x", "y"):
            assert trace["meta"] == ("best" if winner and name == winner[0] else truth.trials[name].shown)
            bars[name].append((start, length))
            rows[row].append((start, 0 if length * unit < longest / 1999 else length))  # short bars are drawn longer
    close = {"abs": 0.002 / unit, "rel": 1e-6}
    assert sum(map(len, bars.values())) == len(runs)
    for name, trial in truth.trials.items():
        spans = [((start - first) / unit, max(end - start, longest / 2000) / unit) for start, end in trial.runs]
        same(sorted(bars[name]), sorted(spans), close)
    for each in rows.values():  # trials that ran at a time are in rows of their own
        for (start, length), (after, _) in pairwise(sorted(each)):
            assert after >= start + length - 0.06 / unit


class Sections(HTMLParser):
    """The tables of report.html: heading -> rows, each of which maps a column to its text."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.paragraphs, self._open, self._cells = {}, [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._open = tag
        if tag in ("h2", "th", "td", "p"):
            self._cells.append("")
        elif tag == "tr":
            self._cells = []

    def handle_data(self, data):
        if self._cells and self._open not in ("script", "style"):
            self._cells[-1] += data

    def handle_endtag(self, tag):
        if tag == "h2":
            self._title = self._cells[-1]
        elif tag == "p" and self._cells:
            self.paragraphs.append(self._cells[-1])
        elif tag == "thead":
            self._head, self.tables[self._title] = self._cells, []
        elif tag == "tr" and self._title in self.tables:
            self.tables[self._title].append(dict(zip(self._head, self._cells, strict=True)))

    _title = ""


def number(text):
    return float(text) if text else None


def check_report(truth, text, rungs, decisions, experiment):
    """Checks the figures of report.html, and its tables: `rungs` and `decisions` are the service's, checked before."""
    figures = json.loads(re.search(r"const FIGURES = (.*), CONTOURS = ", text).group(1))
    check_figures(truth, figures, experiment)
    sections = Sections(text[text.index("</style>") : text.index("<script>")])
    winner = truth.winner()
    if winner:
        shown = next(each for each in sections.paragraphs if each.startswith("Best loss "))
        value, name, epoch = re.match(r"Best loss (\S+): trial (\S+), epoch (\d+): ", shown).groups()
        assert (name, int(epoch)) == winner
        same(float(value), truth.trials[name].values[int(epoch)], SHOWN)
    columns = {
        "rung": "rung", "bracket": "bracket", "band": "band", "reached": "reached", "continued": "continued",
        "pruned": "stopped", "paused": "waiting", "best value": "best", "last cutoff used": "cutoff_then",
        "cutoff with all results": "cutoff_now", "would survive today": "would_survive",
    }  # fmt: skip
    check_table(sections.tables.get("Rungs", []), rungs, columns)
    columns = {name: name for name in ("trial", "outcome", "epoch", "rung", "value", "cutoff", "margin")}
    check_table(sections.tables.get("Decisions, the closest first", []), decisions[:200], columns)
    rows = []
    for name, trial in truth.trials.items():
        best, last = trial.best(truth.sign), trial.values.get(trial.last)
        rows.append({
            "trial": name, "status": trial.shown, "best": trial.values.get(best), "best_epoch": best, "last": last,
            "epochs": trial.last,
        })  # fmt: skip
    columns = {"trial": "trial", "status": "status", "best_loss": "best", "best epoch": "best_epoch",
               "last_loss": "last", "epochs": "epochs"}  # fmt: skip
    check_table(sections.tables["Trials"], rows, columns)


def check_table(shown, expected, columns):
    assert len(shown) == len(expected)
    for row, one in zip(shown, expected, strict=True):
        for heading, name in columns.items():
            value = one[name]
            if name in ("trial", "status", "outcome"):
                assert row[heading] == value
            elif usable(value) or value is None:
                same(number(row.get(heading, "")), value, SHOWN)  # an empty column is left out
            else:  # the journal and the service write nan and infinity as text
                assert str(number(row[heading])) == str(float(value))
