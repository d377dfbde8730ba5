"""What a page keeps over a reload, and what it says about trials, rows and fields that it does not show whole."""

import json
import re
import time

import pytest
from browsing import add_trial, expect, rows, write_experiment
from test_browser_selection import CHOICE, COVERED, opened, row

pytestmark = pytest.mark.browser
# Of a figure's layer, the colours that cover it fully.
COLORS = """name => { const layer = document.querySelector(`#${name} .selection-layer`), seen = new Set();
  const { data } = layer.getContext("2d").getImageData(0, 0, layer.width, layer.height);
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) seen.add([...data.slice(i, i + 3)].join());
  return [...seen]; }"""


def test_selected_pinned_and_hidden_trials_stay_after_a_reload_and_are_shown_again_by_a_click(page, viewer):
    write_experiment(viewer.results).close()
    write_experiment(viewer.results, "other").close()
    opened(page, viewer)
    for trial, key in (("00000", "p"), ("00001", "p"), ("00002", "h"), ("00003", " ")):
        row(page, trial).focus()
        page.keyboard.press(key)
    page.reload()
    expect(rows(page, "trials")).to_have_count(5)
    kept = {"selected": ["00003"], "pinned": ["00000", "00001"], "hidden": ["00002"]}
    assert page.evaluate(CHOICE) == kept
    expect(page.locator("#pinned thead th")).to_have_count(3)
    page.goto(f"{viewer.url}#other")
    expect(rows(page, "trials")).to_have_count(6)
    assert page.evaluate(CHOICE) == {"selected": [], "pinned": [], "hidden": []}
    page.goto(f"{viewer.url}#demo")
    expect(rows(page, "trials")).to_have_count(5)
    assert page.evaluate(CHOICE) == kept
    page.click("#hidden-show")
    expect(rows(page, "trials")).to_have_count(6)


def test_a_pinned_trial_keeps_its_colour_and_a_saved_image_has_the_selected_trials(page, viewer):
    write_experiment(viewer.results).close()
    opened(page, viewer, address="#demo?pin=00000&pin=00001")
    page.locator("#pinned_curves").scroll_into_view_if_needed()
    page.wait_for_function("() => document.getElementById('pinned_curves')?.data?.length === 2")
    row(page, "00001").focus()
    page.keyboard.press("Space")
    page.locator("#pinned_curves").scroll_into_view_if_needed()
    page.wait_for_function(f"({COVERED})('pinned_curves') > 0")
    # The colour of the legend, no veil, which is not opaque, and nothing in the text's colour.
    colors = page.evaluate(COLORS, "pinned_curves")
    assert "213,94,0" in colors and "28,36,48" not in colors
    assert page.evaluate(COVERED.replace("=== 255", "=== 184"), "pinned_curves") < 1000
    page.locator("#curves").scroll_into_view_if_needed()
    page.wait_for_function(f"({COVERED})('curves') > 0")
    with page.expect_download() as download:
        page.get_by_role("button", name="save as SVG: figure curves").click()
    assert 'href="data:image/png' in download.value.path().read_text().partition('class="layer-above"')[2]
    row(page, "00002").focus()
    page.keyboard.press("ArrowDown")
    cells = row(page, "00003").locator("td")  # the focus is seen on each
    shadows = cells.evaluate_all("all => all.map((each) => getComputedStyle(each).boxShadow)")
    assert all(len(re.findall("inset", shadow)) >= 2 for shadow in shadows)


def test_a_figure_says_which_selected_trials_it_leaves_out(page, viewer):
    journal = write_experiment(viewer.results)
    journal.write("trial_suggested", "00006", config={"x": 0.6})
    journal.write("trial_started", "00006", config={"x": 0.6}, resources={"CPU": 1}, node="n")
    journal.close()
    opened(page, viewer, "slices", trials=7)
    expect(page.locator("#slices-missing")).to_be_hidden()
    for trial in ("00005", "00006"):
        row(page, trial).focus()
        page.keyboard.press("Control+Space")
    page.locator("#slices").scroll_into_view_if_needed()
    expect(page.locator("#slices-missing")).to_contain_text("Not drawn here: 1 of the selected trials.")
    expect(page.locator("#slices-section .images")).to_be_visible()


def test_a_request_is_sent_once_while_it_is_checked(page, acting):
    journal = write_experiment(acting.results)
    journal.write("experiment_finished", state="finished", reason="")
    journal.close()
    sent = []

    def slow(route):
        sent.append(route.request.post_data)
        time.sleep(0.3)
        route.fulfill(status=409, content_type="application/json", body=json.dumps({"error": "not now"}))

    page.goto(acting.link)
    page.wait_for_url(acting.url)
    page.route("**/resume", slow)
    page.goto(f"{acting.url}#demo")
    page.fill("#more-samples", "12")
    page.evaluate("() => { for (let i = 0; i < 3; i++) document.getElementById('control').requestSubmit(); }")
    expect(page.locator("#control-status")).to_have_text("not now")
    assert len(sent) == 1
    page.click("#resume-button")
    expect(page.locator("#control")).to_have_attribute("aria-busy", "false")
    page.wait_for_timeout(500)
    assert len(sent) == 2


def test_placeholders_are_whole_and_every_table_has_a_filter_and_downloads(page, viewer):
    write_experiment(viewer.results).close()
    opened(page, viewer)
    cut = """() => { const pen = document.createElement("canvas").getContext("2d");
      return [...document.querySelectorAll("input[type=search]")].filter((box) => { const style = getComputedStyle(box);
        pen.font = `${style.fontSize} ${style.fontFamily}`;
        return box.clientWidth && pen.measureText(box.placeholder).width > box.clientWidth - 16; })
        .map(({ id }) => id); }"""
    assert page.evaluate(cut) == []
    bare = """() => [...document.querySelectorAll("table:not(.beside)")].map(({ id }) => id)
      .filter((id) => !document.querySelector(`[data-table="${id}"] input[type=search]`))"""
    assert page.evaluate(bare) == []
    assert page.locator("[data-table=rungs] button").all_text_contents() == ["?", "CSV", "JSON"]
    page.fill("#rung-filter", "rung:7")
    expect(page.locator("#rung-count")).to_have_text("0 of 1")
    page.set_viewport_size({"width": 640, "height": 400})  # at 200 percent, the bars leave the page its height
    bars = page.evaluate("['nav', '#selection'].map((bar) => document.querySelector(bar).offsetHeight)")
    assert sum(bars) <= 400 / 5 and max(bars) < 45
    narrow = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    page.wait_for_function(narrow)  # Plotly redraws its figures a moment after the window has changed


def test_paper_says_how_many_rows_it_has(page, viewer):
    journal = write_experiment(viewer.results)
    for trial in range(6, 600):
        add_trial(journal, trial)
    journal.close()
    page.goto(f"{viewer.url}#demo")
    expect(page.locator("#trial-count")).to_have_text("first 500 of 600")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    expect(page.locator("#trials caption")).to_contain_text("500 of 600 rows are printed.")
    expect(page.locator("#rungs caption")).to_be_hidden()
