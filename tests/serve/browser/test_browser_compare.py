"""The comparison in chromium: ticks, link, figures, choices, tables, updates."""

import json
import re

import pytest
from browsing import expect, place, rows, saved
from journals import append

from tests.views.test_compare import write_search

pytestmark = pytest.mark.browser
FIGURES = ("compare-epochs", "compare-seconds", "compare-trials", "compare-values")
LINK = "#?compare=a&compare=b"


@pytest.fixture
def searches(viewer):
    for seed, name in enumerate("ab"):
        write_search(viewer.results, name, seed, max_epochs=8 + seed)
    return viewer


def drawn(page, figure, count):
    page.wait_for_function("([id, n]) => document.getElementById(id).data?.length === n", arg=[figure, count])
    return page.evaluate("id => document.getElementById(id).data.map(({ meta, line }) => [meta, line.color])", figure)


def test_ticked_experiments_are_compared_by_a_link_that_works_after_a_reload(page, searches):
    page.goto(searches.url)
    expect(page.locator("#compare-ticked")).to_have_text("Tick two or more experiments to compare them.")
    for name in "ab":
        page.get_by_label(f"compare {name}", exact=True).focus()
        page.keyboard.press("Space")
    page.get_by_role("link", name="Compare 2 experiments").click()
    assert page.url.endswith(LINK)
    looks = {str(drawn(page, figure, 2)) for figure in FIGURES}
    assert len(looks) == 1
    page.reload()
    drawn(page, "compare-values", 2)
    expect(rows(page, "compare-costs")).to_have_count(2)
    expect(page.locator("main#list")).to_be_hidden()
    page.click("header >> text=tuner")
    expect(page.locator("main#compare")).to_be_hidden()
    expect(rows(page, "experiments")).to_have_count(2)
    expect(page.get_by_label("compare a", exact=True)).not_to_be_checked()


def test_what_cannot_be_compared_and_other_metrics_are_said(page, searches):
    write_search(searches.results, "c", mode="max")
    write_search(searches.results, "broken")
    (searches.results / "broken" / "journal.jsonl").write_text("{torn\n{}\n")
    page.goto(f"{searches.url}{LINK}&compare=gone&compare=broken&compare=c")
    drawn(page, "compare-epochs", 2)
    expect(page.locator("#compare-notice")).to_contain_text("Not compared: gone, broken")
    expect(page.locator("#compare-notice")).to_contain_text("2 different metrics or modes")
    expect(rows(page, "compare-costs").nth(2)).to_contain_text("no experiment of that name")
    expect(rows(page, "compare-costs").nth(3)).to_contain_text("damaged at line 1")
    page.select_option("#compare-group", label="loss (max)")
    assert drawn(page, "compare-epochs", 1)[0][0] == "c" and "group=1" in page.url
    page.go_back()
    drawn(page, "compare-epochs", 2)


def test_the_legend_hides_an_experiment_a_saved_figure_has_it_and_a_line_leads_to_its_trial(page, searches):
    page.goto(f"{searches.url}{LINK}")
    drawn(page, "compare-values", 2)
    button = page.locator("#compare-legend button", has_text="a")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    for figure in FIGURES:
        page.locator(f"#{figure}").scroll_into_view_if_needed()
        page.wait_for_function(
            "id => String(document.getElementById(id).data.map((t) => t.visible)) === 'false,true'", arg=figure
        )
    button.click()
    svg = saved(page, "[aria-label='save as SVG: figure compare-epochs']")[1].read_text()
    assert 'class="legendtext"' in svg and ">b</text>" in svg
    page.locator("#compare-epochs").scroll_into_view_if_needed()
    trial = page.evaluate("document.getElementById('compare-epochs').data[0].customdata.at(-1)")
    page.mouse.move(*place(page, "compare-epochs", trial))
    page.mouse.click(*place(page, "compare-epochs", trial))
    page.wait_for_url(f"**/#a/{trial}")
    expect(page.locator("#trial-name")).to_contain_text(trial)


def test_tables_show_what_differs_figures_have_a_text_and_all_fits_a_narrow_screen(page, searches):
    page.goto(f"{searches.url}{LINK}")
    expect(rows(page, "compare-options")).to_have_text([re.compile(r"max_epochs\s*8\s*9"), re.compile(r"seed\s*0\s*1")])
    expect(page.locator("#compare-parameters-equal")).to_have_text("All have the same parameters.")
    expect(page.locator("#compare-parameters")).to_be_hidden()
    page.check("#compare-same")
    expect(rows(page, "compare-parameters").filter(has_text="loguniform(0.0001, 0.1)")).to_have_count(1)
    expect(rows(page, "compare-options").filter(has_text="searcher")).to_have_count(1)
    name, path = saved(page, "[aria-label^='save result and cost as JSON']")
    costs = [(row["name"], row["trials"]) for row in json.loads(path.read_text())]
    assert name == "compare-compare-costs.json" and costs == [("a", 30), ("b", 30)]
    page.set_viewport_size({"width": 400, "height": 900})
    page.emulate_media(color_scheme="dark")
    page.reload()
    for figure in FIGURES:
        drawn(page, figure, 2)
        expect(page.locator(f"#{figure}-text")).to_contain_text("b")
        assert page.get_attribute(f"#{figure}", "aria-labelledby") == f"{figure}-text"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_page_follows_a_search_that_runs(page, searches):
    journal = searches.results / "a" / "journal.jsonl"
    append(journal, {"time": 9000.0, "event": "experiment_resumed"})
    page.goto(f"{searches.url}{LINK}")
    expect(rows(page, "compare-costs").first).to_contain_text("running")
    report = {"time": 9001.0, "trial": "00000", "event": "report", "epoch": 20, "metrics": {"loss": -77.5}}
    append(journal, report)
    expect(rows(page, "compare-costs").first).to_contain_text("-77.5")
    page.wait_for_function("document.getElementById('compare-epochs').data[0].y.at(-1) === -77.5")
