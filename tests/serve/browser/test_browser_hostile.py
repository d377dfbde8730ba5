"""Names that are markup in chromium: they stay text in headings, cells, groups, completions, choosers and on paper."""

from urllib.parse import quote

import pytest
from browsing import DRAWN, column, drawn, expect, heads, put_apart, rows, saved, tab

from tests.serve.conftest import begin

pytestmark = pytest.mark.browser
EVIL = "<img src=x onerror=owned()>"
PARAMETER, METRIC, VALUE = f"a{EVIL}", f"b{EVIL}", f"c{EVIL}\"'&amp;"
IMAGES = "document.querySelectorAll('img, [onerror]').length"


@pytest.fixture
def hostile(viewer):
    """Two experiments; all that a user names is markup, except experiments, whose names must be letters and digits."""
    for name in ("evil", "plain"):
        options = {"space": f"{EVIL}.py", "metric": METRIC, "num_samples": 4, "max_epochs": 4, "reduction_factor": 2}
        journal = begin(viewer.results, name, {"space": {"params": {}}, "data": {}}, **options)
        for number in range(4):
            trial = f"{number:05}"
            config = {PARAMETER: VALUE if number % 2 else "d", "x": number + 0.5, f"n{EVIL}": {EVIL: number}}
            journal.write("trial_started", trial, config=config, resources={"CPU": 1}, node=EVIL)
            for epoch in range(1, 5):
                journal.write("report", trial, epoch=epoch, metrics={METRIC: number + 1 / epoch, EVIL: epoch})
            decision = {"epoch": 1, "rung": 1, "bracket": 0, "cutoff": 1.5, "recorded": 1, "value": number + 1.0}
            journal.write("decision", trial, **decision, action="continue", reason=EVIL)
            journal.write("trial_ended", trial, status="completed", reason=EVIL)
        journal.close()
        put_apart(viewer.results, name=name)
    (viewer.results / EVIL).mkdir()  # which is no experiment
    return viewer


def printed(page):
    """What the open tab has on paper."""
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    text = page.locator(".tabulator-print-table").all_text_contents()
    assert page.evaluate(IMAGES) == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    return "\n".join(text)


def test_the_list_shows_names_that_are_markup_as_text(page, hostile):
    page.goto(hostile.url)
    expect(rows(page, "experiments")).to_have_count(2)
    assert sorted(column(page, "experiments", "name")) == ["evil", "plain"]
    assert column(page, "experiments", "metric") == [METRIC] * 2
    page.check("#group-spaces")
    expect(page.locator("#experiments .tabulator-group")).to_have_text([f"{EVIL}.py (2)"])
    assert f"{EVIL}.py (2)" in printed(page) and METRIC in printed(page)
    page.fill("#experiments-filter", f'space:"{EVIL}.py" name:evil')
    expect(page.locator("#experiments-told")).to_have_text(f"Rows where space is {EVIL}.py and name is evil.")
    expect(page.locator("#experiments-count")).to_have_text("1 of 2")
    page.fill("#experiments-filter", "space:")
    offered = page.locator("#experiments-names option")
    assert [each.get_attribute("value") for each in offered.all()] == [f'space:"{EVIL}.py"']
    page.fill("#experiments-filter", "")
    for label in ("compare evil", "compare plain"):
        page.get_by_label(label, exact=True).check()
    assert page.evaluate(IMAGES) == 0
    page.click("#compare-ticked a")
    expect(page.locator("#compare-legend button")).to_have_text(["evil", "plain"])
    expect(rows(page, "compare-costs")).to_have_count(2)
    page.check("#compare-same")
    expect(rows(page, "compare-options").first).to_be_visible()
    assert METRIC in column(page, "compare-options", "evil") and METRIC in printed(page)
    page.wait_for_function(DRAWN, arg="compare-values")
    assert page.evaluate(IMAGES) == 0


def test_an_experiments_page_shows_names_that_are_markup_as_text(page, hostile):
    page.goto(f"{hostile.url}#{quote(EVIL)}/{quote(EVIL)}/{quote(EVIL)}?pin={quote(EVIL)}")
    expect(page.locator("#problem")).to_contain_text("no experiment of that name")
    assert page.evaluate(IMAGES) == 0
    page.goto(f"{hostile.url}#evil")
    expect(page.locator("#name")).to_have_text("evil")
    expect(page.locator("#best-value")).to_contain_text(f"Best setting: {METRIC} 0.25, trial 00000")
    expect(page.locator("#best-setting dt")).to_have_text([PARAMETER, "x", f"n{EVIL}/{EVIL}"])
    assert page.title() == "4 of 4 evil: tuner"
    tab(page, "Trials")
    expect(rows(page, "trials")).to_have_count(4)
    shown = heads(page, "trials")
    assert {f"best_{METRIC}", EVIL, PARAMETER, f"n{EVIL}/{EVIL}"} < set(shown)
    cells = page.locator("#trials .tabulator-row").nth(1).locator(".tabulator-cell").all_inner_texts()
    assert VALUE in cells and EVIL in cells
    page.click(".tools:has(#trials-filter) summary")
    chooser = page.locator(".tools:has(#trials-filter) details label")
    for name in (PARAMETER, f"last_{EVIL}"):
        expect(chooser.filter(has_text=name).first).to_be_visible()
    paper = printed(page)
    assert all(each in paper for each in (f"best_{METRIC}", PARAMETER, VALUE, EVIL))
    page.fill("#trials-filter", f'"{PARAMETER}":d "{EVIL}">=4')
    expect(page.locator("#trials-told")).to_have_text(f"Rows where {PARAMETER} is d and {EVIL} >= 4.")
    expect(page.locator("#trials-count")).to_have_text("2 of 4")
    page.fill("#trials-filter", "a<img")
    expect(page.locator("#trials-told")).to_contain_text("a<img: no column a;")
    page.fill("#trials-filter", "")
    for trial in ("00000", "00001"):
        page.locator(f"#trials [data-trial='{trial}']").focus()
        page.keyboard.press("p")
    expect(rows(page, "pinned").filter(has_text=PARAMETER)).to_have_count(1)
    expect(page.get_by_text("2 pinned:")).to_be_visible()  # until then, a table that is built anew may lose a click
    page.click("#trials >> text=00001")
    expect(page.locator("#trial-parameters")).to_contain_text(f"{PARAMETER} {VALUE}")
    expect(page.locator("#trial-cost")).to_contain_text(EVIL)
    page.keyboard.press("Escape")
    assert page.evaluate(IMAGES) == 0
    for figure in ("curves", "rung_values", "parallel", "slices", "timeline"):
        drawn(page, figure)
        assert page.evaluate(IMAGES) == 0
    tab(page, "Curves")
    page.select_option("#curves-metric", EVIL)
    page.wait_for_function("document.getElementById('curves').data[0].y.includes(4)")
    expect(page.locator("#curves .ytitle")).to_have_text(EVIL)
    head = saved(page, "[aria-label='save as CSV: data of figure curves']")[1].read_text().splitlines()[0]
    assert head == f'"series","trial","epoch","{EVIL}"'
    tab(page, "Parameters")
    expect(page.locator("#values-metric option").nth(1)).to_have_text(EVIL)
    for place in ("contour", "costs"):
        page.click(f"#{place}-section > summary")
    expect(page.locator("#contour-x option").first).to_have_text(PARAMETER)
    page.wait_for_function(DRAWN, arg="contour")
    assert PARAMETER in column(page, "costs", "parameter")
    assert page.evaluate(IMAGES) == 0 == page.locator("#problem:visible").count()
