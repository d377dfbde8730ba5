"""Metrics besides the searched one in chromium: columns, curves over time and smoothed, comparisons of parameters."""

import csv
import math

import pytest
from browsing import DRAWN, column, drawn, expect, heads, opened, put_apart, saved, tab

from tests.serve.conftest import begin

pytestmark = pytest.mark.browser
TRIALS = [f"{number:05}" for number in range(5)]
LOSSES = {trial: [3.0 + n - epoch / 4 + 2 * (epoch == 8) for epoch in range(1, 9)] for n, trial in enumerate(TRIALS)}
ACCURACIES = {trial: [(epoch * (n + 3) * 37 % 11) / 10 for epoch in range(1, 9)] for n, trial in enumerate(TRIALS)}
ACCURACIES["00002"][2] = None  # not finite, which is a gap in the curve
DRAWN_ACCURACIES = {**ACCURACIES, "00004": ACCURACIES["00004"][:4] + ACCURACIES["00004"][5:]}  # one is not reported
SETTINGS = {trial: {"lr": 0.3 / 7**n, "width": 8 * (n % 3 + 1)} for n, trial in enumerate(TRIALS)}
# The points of a figure's traces with curves: trial -> [x, y] of each.
CURVES = """name => { const found = {};
  for (const { x, y, customdata, meta } of document.getElementById(name).data) {
    if (["stop", "cutoff", "band"].includes(meta)) continue;
    customdata?.forEach((trial, i) => { if (trial !== null) (found[trial] ??= []).push([x[i], y[i]]); });
  }
  return found; }"""


@pytest.fixture
def measured(viewer):
    """A search over the loss whose trials report their accuracy, too; the best loss is that of epoch 7."""
    width = {"kind": "choice", "values": [8, 16, 24]}
    params = {"lr": {"kind": "loguniform", "lower": 1e-4, "upper": 1}, "width": width}
    facts = {"space": {"params": params}, "data": {}}
    journal = begin(viewer.results, "demo", facts, max_epochs=8, reduction_factor=2)
    for trial in TRIALS:
        journal.write("trial_started", trial, config=SETTINGS[trial], resources={"CPU": 1}, node="n")
        for epoch, (loss, accuracy) in enumerate(zip(LOSSES[trial], ACCURACIES[trial], strict=True), 1):
            metrics = {"loss": loss, "accuracy": "nan" if accuracy is None else accuracy, "train_s": 0.5}
            if (trial, epoch) == ("00004", 5):
                del metrics["accuracy"]
            journal.write("report", trial, epoch=epoch, metrics=metrics)
        journal.write("trial_ended", trial, status="pruned" if trial == "00003" else "completed", reason="")
    put_apart(viewer.results, journal=journal)
    yield journal
    journal.close()


def ys(page, figure="curves"):
    return {trial: [y for _, y in points] for trial, points in page.evaluate(CURVES, figure).items()}


def chosen(page, figure, box, value, title):
    """Chooses a value in a box and waits until the figure shows it."""
    page.select_option(box, value)
    page.wait_for_function(
        "([name, title]) => document.getElementById(name).layout.yaxis.title.text.startsWith(title)",
        arg=[figure, title],
    )


def test_every_metric_is_a_column_and_a_word_of_the_filter(page, viewer, measured):
    opened(page, viewer, trials=5)
    shown = heads(page, "trials")
    assert "accuracy" in shown and not {"last_accuracy", "train_s", "last_train_s"} & set(shown)
    at_best = [str(ACCURACIES[trial][6]).removesuffix(".0") for trial in TRIALS]
    assert column(page, "trials", "accuracy") == at_best
    last = {trial: ACCURACIES[trial][-1] for trial in TRIALS}
    limit = sorted(last.values())[2]
    page.fill("#trials-filter", f"last_accuracy<{limit} or train_s:7")  # of a hidden column
    found = [trial for trial in TRIALS if last[trial] < limit]
    expect(page.locator("#trials-count")).to_have_text(f"{len(found)} of 5")
    assert column(page, "trials", "trial") == found
    page.fill("#trials-filter", f"best_loss>2 accuracy:{at_best[1]}")
    expect(page.locator("#trials-told")).to_have_text(f"Rows where best_loss > 2 and accuracy is {at_best[1]}.")
    assert "00001" in column(page, "trials", "trial")
    page.click(".tools:has(#trials-filter) summary")
    page.get_by_label("last_accuracy", exact=True).check()
    page.fill("#trials-filter", "")
    assert column(page, "trials", "last_accuracy") == [str(each).removesuffix(".0") for each in last.values()]


def test_curves_show_another_metric_over_epochs_or_time_and_keep_the_choice(page, viewer, measured):
    page.goto(f"{viewer.url}#demo")
    drawn(page, "curves")
    assert ys(page) == LOSSES
    assert page.locator("#curves-metric option").all_text_contents() == ["loss", "accuracy", "train_s"]
    chosen(page, "curves", "#curves-metric", "accuracy", "accuracy")
    assert ys(page) == DRAWN_ACCURACIES
    page.select_option("#curves-clock", "time")
    page.wait_for_function("document.getElementById('curves').layout.xaxis.title.text.includes('second')")
    points = page.evaluate(CURVES, "curves")
    assert {trial: [y for _, y in each] for trial, each in points.items()} == DRAWN_ACCURACIES
    # Each event is a second after the one before, so a trial reports each second after its start.
    assert [x for x, _ in points["00001"]] == list(range(1, 9)) and points["00004"][4][0] == 6
    tab(page, "Trials")
    measured.write("trial_started", "00005", config={"lr": 1.0}, resources={"CPU": 1}, node="n")
    measured.write("report", "00005", epoch=1, metrics={"loss": 1.0, "accuracy": 0.77})
    tab(page, "Curves")
    page.wait_for_function(f"({CURVES})('curves')['00005']?.[0][1] === 0.77")  # an update keeps the choice
    assert [page.input_value(f"#curves-{box}") for box in ("metric", "clock")] == ["accuracy", "time"]
    page.select_option("#curves-clock", "")
    chosen(page, "curves", "#curves-metric", "loss", "loss")
    assert ys(page)["00000"] == LOSSES["00000"]


def test_smoothed_curves_are_moving_averages_of_each_trial_corrected_for_their_start(page, viewer, measured):
    def averages(values, weight):
        """Each value weighs `weight` times the next one; a gap counts for nothing."""
        known, found = [], []
        for value in values:
            known += [] if value is None else [value]
            powers = [weight**age for age in reversed(range(len(known)))]
            mean = sum(power * each for power, each in zip(powers, known, strict=True)) / sum(powers)
            found.append(None if value is None else pytest.approx(mean, rel=1e-9))
        return found

    page.goto(f"{viewer.url}#demo")
    drawn(page, "curves")
    chosen(page, "curves", "#curves-metric", "accuracy", "accuracy")
    for weight in ("0.6", "0.98"):
        page.fill("#smoothing", weight)
        chosen(page, "curves", "#curves-metric", "accuracy", f"accuracy, smoothed by {float(weight):.2f}")
        expect(page.locator("#smoothed")).to_have_text(f"{float(weight):.2f}")
        assert ys(page) == {trial: averages(each, float(weight)) for trial, each in DRAWN_ACCURACIES.items()}
    page.fill("#smoothing", "0")
    chosen(page, "curves", "#curves-metric", "accuracy", "accuracy")
    expect(page.locator("#smoothed")).to_have_text("off")
    page.wait_for_function("!document.getElementById('curves').layout.yaxis.title.text.includes('smoothed')")
    assert ys(page) == DRAWN_ACCURACIES


def test_parameters_are_compared_by_another_metric_in_every_figure(page, viewer, measured):
    values = """name => { const { x, y, customdata } = document.getElementById(name).data[0];
      return Object.fromEntries(customdata.map((trial, i) => [trial, [x[i], y[i]]])); }"""
    page.goto(f"{viewer.url}#demo//parameters")
    page.wait_for_function(DRAWN, arg="slices")
    for place in ("contour", "importance"):
        page.click(f"#{place}-section > summary")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    chosen(page, "slices", "#values-metric", "accuracy", "accuracy")
    page.select_option("#values", "last")
    page.wait_for_function("document.getElementById('slices').layout.yaxis.title.text === 'last accuracy'")
    assert page.evaluate(values, "slices") == {
        trial: [pytest.approx(math.log10(SETTINGS[trial]["lr"])), ACCURACIES[trial][-1]] for trial in TRIALS
    }
    page.select_option("#values", "best")
    page.wait_for_function("!document.getElementById('slices').layout.yaxis.title.text.startsWith('last')")
    found = page.evaluate(values, "slices")
    assert {trial: y for trial, (_, y) in found.items()} == {trial: ACCURACIES[trial][6] for trial in TRIALS}
    parallel = "document.getElementById('parallel').data[0].dimensions.at(-1)"
    assert page.evaluate(f"{parallel}.label").startswith("accuracy")
    assert page.evaluate(f"{parallel}.values") == [ACCURACIES[trial][6] for trial in TRIALS]
    expect(page.locator("#values option:checked")).to_have_text("at its best epoch")
    for part in ("contour", "importance"):
        assert any(f"/{part}?" in url and "values=best%3Aaccuracy" in url for url in asked), part
    chosen(page, "slices", "#values-metric", "loss", "best loss")
    assert {trial: y for trial, (_, y) in page.evaluate(values, "slices").items()} == {
        trial: min(LOSSES[trial]) for trial in TRIALS
    }


def test_the_csv_of_a_figure_has_the_numbers_that_it_shows(page, viewer, measured):
    def table(figure):
        """The lines of a figure's file that belong to a trial: trial -> its lines."""
        drawn(page, figure)
        name, path = saved(page, f"[aria-label='save as CSV: data of figure {figure}']")
        assert name == f"demo-{figure}.csv"
        lines = list(csv.DictReader(path.read_text().splitlines()))
        return {trial: [line for line in lines if line["trial"] == trial] for trial in (*TRIALS, "")}

    def numbers(lines, *heads):
        return [tuple(float(line[head]) if line[head] else None for head in heads) for line in lines]

    page.goto(f"{viewer.url}#demo//contour")
    found = table("curves")
    assert {trial: numbers(found[trial], "epoch", "loss") for trial in TRIALS} == {
        trial: list(enumerate(losses, 1)) for trial, losses in LOSSES.items()
    }
    page.fill("#smoothing", "0.5")
    chosen(page, "curves", "#curves-metric", "accuracy", "accuracy, smoothed by 0.50")
    found = table("curves")["00000"]
    a, b = ACCURACIES["00000"][:2]
    assert numbers(found, "accuracy, smoothed by 0.50")[:2] == [(a,), (pytest.approx((a / 2 + b) / 1.5),)]
    # A trial has ten events, each a second after the one before.
    found = table("timeline")
    assert {trial: numbers(found[trial], "from", "seconds since the first run shown started") for trial in TRIALS} == {
        trial: [(10 * n, 10 * n + 9)] for n, trial in enumerate(TRIALS)
    }
    settings = {trial: [pytest.approx(tuple(each.values()))] for trial, each in SETTINGS.items()}
    best = {trial: [(min(losses),)] for trial, losses in LOSSES.items()}
    tab(page, "Parameters")
    page.wait_for_function(DRAWN, arg="slices")
    chosen(page, "slices", "#values", "best", "best loss")
    found = table("parallel")
    assert {trial: numbers(found[trial], "lr", "width") for trial in TRIALS} == settings
    assert {trial: numbers(found[trial], "best loss") for trial in TRIALS} == best
    found = table("slices")
    assert {trial: numbers(found[trial], "best loss") for trial in TRIALS} == {each: 2 * best[each] for each in TRIALS}
    assert numbers(found["00001"], "lr", "width") == [(pytest.approx(0.3 / 7), None), (None, 16)]
    page.wait_for_function(DRAWN, arg="contour")
    found = table("contour")
    assert {trial: numbers(found[trial], "lr", "width") for trial in TRIALS} == settings
    surface = numbers(found[""], "lr", "surface")
    rows = page.evaluate("document.getElementById('contour').data[0].z")
    assert [value for _, value in surface] == [value for row in rows for value in row]
    assert [surface[0][0], surface[-1][0]] == pytest.approx([0.3 / 7**4, 0.3])
    page.evaluate("import('/selection.js').then(({ hide }) => hide(['00001', '00004']))")
    for figure in ("parallel", "timeline"):
        drawn(page, figure)
        shows = f"document.getElementById('{figure}').data.some(({{ customdata }}) => customdata.includes('00001'))"
        page.wait_for_function(f"!{shows}")
        assert [trial for trial, lines in table(figure).items() if lines] == ["00000", "00002", "00003"]
