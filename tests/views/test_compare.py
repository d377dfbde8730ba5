"""A comparison's numbers, recomputed from the journal's lines."""

import math
import random
import statistics
from dataclasses import replace

import pytest
from journals import lines_of

from tuner.record.format import FORMAT
from tuner.record.results import load
from tuner.record.saved_experiment import save_experiment
from tuner.record.texts import domain_text
from tuner.spec.experiment import Experiment
from tuner.views import compare
from tuner.views.compare import compared_of, draw_distributions, draw_progress, look_of

PARAMS = {
    "lr": {"kind": "loguniform", "lower": 0.0001, "upper": 0.1},
    "l1": {"kind": "choice", "values": [8, 16]},
    "opt/momentum": {
        "kind": "conditional",
        "branches": [{"kind": "choice", "values": [0]}, {"kind": "uniform", "lower": 0}],
    },
}


def write_search(results, name, seed=0, trials=30, epochs=8, mode="min", params=PARAMS, **options):
    """Writes a search in two sessions with an hour between them; returns the journal's events."""
    draw, clock, events, live, started = random.Random(seed), 1000.0, [], {}, 0

    def write(event, trial=None, **more):
        events.append({"time": round(clock, 3), "event": event, **({} if trial is None else {"trial": trial}), **more})

    write("experiment_started", name=name, format=FORMAT)
    while started < trials or live:
        if started == trials // 2 and not any(event["event"] == "experiment_resumed" for event in events):
            write("experiment_finished", state="interrupted", reason="")
            clock += 3600
            write("experiment_resumed", name=name)
        while started < trials and len(live) < 3:
            trial, clock = f"{started:05}", clock + 0.25
            write("trial_started", trial, config={"lr": draw.random()}, resources={"CPU": 1}, node="n")
            live[trial], started = 0, started + 1
        trial = draw.choice(sorted(live))
        live[trial], clock = live[trial] + 1, clock + draw.random()
        value = draw.choice([draw.gauss(0, 1), draw.gauss(0, 1), float("nan")])
        metrics = {"loss": "nan" if math.isnan(value) else value, "accuracy": 0.5}
        write("report", trial, epoch=live[trial], metrics=metrics)
        if live[trial] == epochs or draw.random() < 0.1:
            write("trial_ended", trial, status="completed" if live[trial] == epochs else "pruned", reason="")
            del live[trial]
    clock += 1
    write("experiment_finished", state="finished", reason="")
    folder = results / name
    folder.mkdir()
    chosen = {"space": "tiny", "num_samples": trials, "max_epochs": epochs, "mode": mode, "seed": seed, **options}
    facts = {"created": 1000.0, "space": {"params": params, "constants": {"batch": 8}}, "versions": {"ray": "2.60.0"}}
    save_experiment(Experiment(name=name, results=str(results), **chosen), folder, facts)
    (folder / "journal.jsonl").write_bytes(lines_of(*events))
    return events


def shown(compared, place=0):
    """What is compared of an experiment, with the look that it has at this place of a request."""
    color, dash = look_of(place)
    return replace(compared, row=replace(compared.row, color=color, dash=dash))


def clocks_of(events, mode):
    """Each new best value, by a plain walk over the journal's lines."""
    seconds, last, epochs, trials, best, steps = 0.0, None, 0, set(), None, []
    for event in events:
        resumed = event["event"] == "experiment_resumed"
        seconds += 0 if last is None or resumed else event["time"] - last
        last = event["time"]
        if event["event"] == "trial_started":
            trials.add(event["trial"])
        if event["event"] == "report":
            epochs += 1
            value = event["metrics"]["loss"]
            if value != "nan" and (best is None or (value < best if mode == "min" else value > best)):
                best = value
                steps.append((epochs, pytest.approx(seconds, abs=2e-3), len(trials), value, event["trial"]))
    return steps, (epochs, pytest.approx(seconds, abs=2e-3), len(trials))


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("seed", range(5))
def test_the_best_value_so_far_is_that_of_the_journals_lines(tmp_path, mode, seed):
    events = write_search(tmp_path, "one", seed, mode=mode)
    steps, end = clocks_of(events, mode)
    compared = compared_of(load(tmp_path / "one"))
    assert [tuple(step) for step in compared.steps[:-1]] == steps
    assert tuple(compared.steps[-1]) == (*end, *steps[-1][3:])
    for clock, place in (("epochs", 0), ("trials", 2)):
        (trace,) = draw_progress([shown(compared)], clock)["data"]
        assert trace["x"] == [step[place] for step in steps] + [end[place]]
        assert trace["y"] == [step[3] for step in steps] + [steps[-1][3]]
        assert trace["customdata"] == [step[4] for step in steps] + [steps[-1][4]] and trace["meta"] == "one"


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_distribution_is_that_of_the_trials_values(tmp_path, mode):
    events = write_search(tmp_path, "one", 7, mode=mode)
    compared = compared_of(load(tmp_path / "one"))
    reports = [event for event in events if event["event"] == "report" and event["metrics"]["loss"] != "nan"]
    better, worse = (min, True) if mode == "min" else (max, False)
    best, at_one = {}, {}
    for event in reports:
        value = event["metrics"]["loss"]
        best[event["trial"]] = better(best.get(event["trial"], value), value)
        if event["epoch"] == 1:
            at_one[event["trial"]] = value
    assert list(compared.distributions) == ["best", "1", "2", "last"]  # not of accuracy
    for choice, values in (("best", best), ("1", at_one)):
        (trace,) = draw_distributions([shown(compared)], choice)["data"]
        assert trace["x"] == sorted(values.values(), reverse=not worse)
        assert trace["y"] == pytest.approx([(i + 1) / len(values) for i in range(len(values))])
        assert [values[trial] for trial in trace["customdata"]] == trace["x"]
        assert compared.distributions[choice].median == pytest.approx(statistics.median(values.values()))


def test_what_is_compared_of_a_long_search_stays_small(tmp_path):
    folder = tmp_path / "long"
    write_search(tmp_path, "long", trials=3)
    lines = [{"time": 1.0, "event": "experiment_started", "name": "long", "format": FORMAT}]
    for trial in range(1000):
        of = {"time": 2.0 + trial, "trial": f"{trial:05}"}
        lines.append({**of, "event": "trial_started", "config": {}, "resources": {}, "node": "n"})
        lines.append({**of, "event": "report", "epoch": 1, "metrics": {"loss": -trial}})
    (folder / "journal.jsonl").write_bytes(lines_of(*lines))
    compared = compared_of(load(folder))
    assert len(compared.steps) == compare.MAX_STEPS and len(compared.distributions["best"].rows) == compare.MOST_POINTS
    assert [step.value for step in (compared.steps[0], compared.steps[-1])] == [0, -999]
    assert compare.thinned(range(10_001), 5) == [0, 2500, 5000, 7500, 10_000] and compare.thinned([1, 2], 5) == [1, 2]
    assert compared.distributions["best"].rows[-1][1] == 1 and compared.distributions["best"].size == 1000


def test_a_domain_has_one_text_cut_after_the_most_values():
    assert domain_text({"kind": "choice", "values": [*range(11)]}) == "{0, 1, 2, 3, 4, 5, 6, 7, 8, ...}"
    assert domain_text({"kind": "choice", "values": [*range(10)]}).endswith("8, 9}")
    assert domain_text({"kind": "randint", "lower": 1, "upper": 1_000_000, "q": 4}) == "randint(1, 1000000, step 4)"
    assert domain_text({"lower": [None]}) == "([None])"  # of a file that anybody may have written


def test_options_and_ranges_that_differ_are_marked(tmp_path):
    other = {"lr": {"kind": "loguniform", "lower": 0.001, "upper": 0.1, "q": 0.001}, "l1": PARAMS["l1"]}
    write_search(tmp_path, "one")
    write_search(tmp_path, "two", params=other, max_epochs=9, stop=("loss=0.1",))
    both = [compared_of(load(tmp_path / name)) for name in ("one", "two")]
    options = {row.name: row for row in compare.differences([each.options for each in both])}
    assert {name for name, row in options.items() if row.differs} == {"max_epochs", "stop"}
    assert options["max_epochs"].values == ["8", "9"] and options["version of ray"].values == ["2.60.0"] * 2
    assert "name" not in options and "results" not in options
    parameters = {row.name: row for row in compare.differences([each.parameters for each in both])}
    assert parameters["lr"].values == ["loguniform(0.0001, 0.1)", "loguniform(0.001, 0.1, step 0.001)"]
    assert parameters["l1"].values == ["{8, 16}"] * 2 and not parameters["l1"].differs
    assert parameters["opt/momentum"].values == ["{0} or uniform(0)", ""] and parameters["opt/momentum"].differs
    assert parameters["batch"].values == ["always 8"] * 2


def test_figures_say_what_they_show_and_pruned_trials_are_compared_at_an_epoch_that_all_reached(tmp_path):
    write_search(tmp_path, "one", 1)
    write_search(tmp_path, "two", 2, epochs=2)
    drawn = [shown(compared_of(load(tmp_path / name)), i) for i, name in enumerate(("one", "two"))]
    best = min(drawn, key=lambda each: each.steps[-1].value)
    text = draw_progress(drawn, "epochs")["layout"]["meta"]["text"]
    assert text.startswith(f"Best loss by epochs trained by all trials: {best.row.name} {best.row.best:.5g} (trial ")
    assert "two median" in draw_distributions(drawn, "best")["layout"]["meta"]["text"]
    choices = compare.choices_of(drawn)
    assert choices[0] == "best" and {"best", "last"} < set(choices)
    assert compare.default_of(drawn) == [choice for choice in choices if choice.isdecimal()][-1]
    unpruned = [replace(each, row=replace(each.row, pruned=0)) for each in drawn]
    assert compare.default_of(unpruned) == "best"


def test_a_search_without_values_is_left_out_of_the_figures(tmp_path):
    write_search(tmp_path, "one")
    write_search(tmp_path, "two")
    (tmp_path / "two" / "journal.jsonl").write_text("")
    drawn = [shown(compared_of(load(tmp_path / name)), i) for i, name in enumerate(("one", "two"))]
    assert [trace["meta"] for trace in draw_progress(drawn, "epochs")["data"]] == ["one"]
    assert [trace["meta"] for trace in draw_distributions(drawn, "best")["data"]] == ["one"]
    for figure in (draw_progress(drawn[1:], "seconds"), draw_distributions(drawn[1:], "best")):
        assert figure["data"] == [] and figure["layout"]["meta"]["text"]
    assert len({look_of(number) for number in range(compare.MOST_COMPARED)}) == compare.MOST_COMPARED >= 20
