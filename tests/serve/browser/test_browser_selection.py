"""One selection for all figures and tables, in chromium: by mouse and keyboard, in the address, after a reload."""

import re

import pytest
from browsing import DRAWN, add_trials, drawn, expect, opened, place, put_apart, row, rows, saved, tab, write_experiment

pytestmark = pytest.mark.browser
NONE = {"selected": [], "pinned": [], "hidden": []}
CHOICE = """async () => { const { choice } = await import("/selection.js");
  return Object.fromEntries(Object.entries(choice.now).map(([name, trials]) => [name, [...trials]])); }"""
# How much of a figure's layer is covered: 0 if it shows no selection.
COVERED = """name => { const layer = document.querySelector(`#${name} .selection-layer`);
  if (!layer?.width) return 0;
  const { data } = layer.getContext("2d").getImageData(0, 0, layer.width, layer.height);
  return data.filter((_, i) => i % 4 === 3).reduce((sum, alpha) => sum + (alpha === 255), 0); }"""
PAINTED = COVERED.replace("alpha === 255", "alpha > 0")  # also where a thin line covers a part of a pixel
# Of a figure's layer, the colours that cover it fully.
COLORS = """name => { const layer = document.querySelector(`#${name} .selection-layer`), seen = new Set();
  const { data } = layer.getContext("2d").getImageData(0, 0, layer.width, layer.height);
  for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255) seen.add([...data.slice(i, i + 3)].join());
  return [...seen]; }"""


def selected(page):
    return sorted(page.evaluate(CHOICE)["selected"])


def marked(page, table="trials"):
    return rows(page, table).evaluate_all("""all => all.filter((each) => each.classList.contains("selected"))
      .map((each) => each.dataset.trial)""")


def click(page, trial, *modifiers):
    """Clicks into a row, beside the link to its trial."""
    row(page, trial).locator(".tabulator-cell").nth(2).click(modifiers=list(modifiers))


def press(page, trial, key):
    row(page, trial).focus()
    expect(row(page, trial)).to_be_focused()  # also if the table has just been drawn
    page.keyboard.press(key)


def drag(page, start, end):
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    page.mouse.up()


def shows_selection(page, figure):
    drawn(page, figure)
    page.wait_for_function(f"({COVERED})('{figure}') > 0")


@pytest.mark.parametrize("figure", ["curves", "rung_values", "history", "parallel", "slices", "timeline"])
def test_a_click_in_any_figure_selects_in_all_of_them_and_in_tables(page, viewer, written, figure):
    put_apart(viewer.results, journal=written)
    page.goto(f"{viewer.url}#demo")
    drawn(page, figure)
    assert page.evaluate(COVERED, figure) == 0
    trial = "00000" if figure == "history" else "00003"
    page.mouse.click(*place(page, figure, trial))
    assert [trial] == selected(page) and page.evaluate(COVERED, figure) > 0
    expect(page.locator("#selection-count")).to_have_text(f"1 trial selected: {trial}")
    for title, table in (("Rungs", "decisions"), ("Trials", "trials")):
        tab(page, title)
        expect(rows(page, table)).to_have_count(6)
        assert marked(page, table) == [trial]
    assert row(page, trial).get_attribute("aria-selected") == "true"
    shows_selection(page, "curves")
    page.keyboard.press("Escape")
    assert selected(page) == [] and page.evaluate(COVERED, "curves") == 0
    tab(page, "Trials")
    assert marked(page) == []


def test_shift_and_control_add_and_remove_a_line_leads_to_its_trial_and_a_drag_selects(page, demo):
    drawn(page, "curves")
    page.mouse.click(*place(page, "curves", "00003"))
    for key, nth, then in (("Shift", 2, ["00003", "00004"]), ("Control", 1, ["00003"])):
        page.keyboard.down(key)
        page.mouse.click(*place(page, "curves", "00004", nth))
        page.keyboard.up(key)
        assert selected(page) == then
    page.click("#selection-clear")
    assert selected(page) == []
    drawn(page, "history")
    (x0, y0), (x1, _) = place(page, "history", "00000", 3), place(page, "history", "00000", 4)
    page.mouse.click((x0 + x1) / 2, y0 + 4)  # on the line between two points
    assert selected(page) == ["00000"]
    drawn(page, "parallel")  # a drag selects the lines and points in it
    (x, low), (_, high) = place(page, "parallel", "00002"), place(page, "parallel", "00004")
    drag(page, (x - 8, low + 8), (x + 8, high - 8))
    assert selected(page) == ["00002", "00003", "00004"]
    page.check("#drag-selects")
    drawn(page, "curves")
    x, y = place(page, "curves", "00005", 2)
    page.keyboard.down("Shift")
    drag(page, (x - 15, y - 15), (x + 15, y + 15))
    page.keyboard.up("Shift")
    assert selected(page) == ["00002", "00003", "00004", "00005"]
    assert page.evaluate("document.getElementById('curves').layout.xaxis.autorange") is not False  # it did not zoom


def test_rows_are_selected_pinned_hidden_and_opened_by_keys(page, viewer, demo):
    row(page, "00000").focus()
    steps = {"Space": ["00000"], "ArrowDown": ["00000"], "Control+Space": ["00000", "00001"]}
    for key, then in {**steps, "Shift+ArrowDown": ["00000", "00001", "00002"]}.items():
        page.keyboard.press(key)
        assert selected(page) == then
    page.keyboard.press("p")
    assert page.url == f"{viewer.url}#demo//trials?pin=00002"
    page.keyboard.press("Escape")
    assert page.evaluate(CHOICE) == {**NONE, "pinned": ["00002"]}
    page.keyboard.press("h")
    expect(rows(page, "trials")).to_have_count(5)
    expect(page.locator("#hidden-count")).to_have_text("1 trial hidden")
    assert page.evaluate("document.activeElement.dataset.trial") == "00003"
    page.keyboard.press("Enter")
    expect(page.locator("#trial-name")).to_have_text("Trial 00003: completed")
    page.keyboard.press("Escape")
    page.wait_for_url(f"{viewer.url}#demo//trials?pin=00002")
    page.focus("#selection-ask")
    page.keyboard.press("Enter")
    expect(page.locator("#selection-help")).to_contain_text("pins the row's trial")


def test_hidden_trials_leave_figures_images_and_tables_and_come_back(page, demo):
    shown = """name => [...new Set((document.getElementById(name).data ?? []).flatMap((each) => each.customdata ?? []))]
      .filter(Boolean).sort()"""
    click(page, "00001")
    click(page, "00004", "Shift")
    page.click("#selection-hide")
    expect(page.locator("#hidden-count")).to_have_text("2 trials hidden")
    expect(rows(page, "trials")).to_have_count(4)
    tab(page, "Rungs")
    expect(rows(page, "decisions")).to_have_count(4)
    for name in ("curves", "slices", "timeline", "parallel"):
        drawn(page, name)
        page.wait_for_function(f'JSON.stringify(({shown})(\'{name}\')) == \'["00000","00002","00003","00005"]\'')
    lengths = "document.getElementById('slices').data[0]"
    assert page.evaluate(f"[{lengths}.x.length, {lengths}.y.length, {lengths}.marker.color.length]") == [4, 4, 4]
    page.click("#hidden-show")
    page.wait_for_function(f"({shown})('parallel').length == 6")
    tab(page, "Trials")
    expect(rows(page, "trials")).to_have_count(6)
    click(page, "00003")
    page.click("#selection-only")
    expect(rows(page, "trials")).to_have_count(1)
    assert selected(page) == ["00003"]

    page.keyboard.press("Escape")
    page.click("#hidden-show")
    drawn(page, "parallel")
    at, line = place(page, "parallel", "00004"), "document.getElementById('parallel').data[0]"
    page.evaluate("import('/selection.js').then(({ hide }) => hide(['00001', '00004']))")
    page.wait_for_function(f"{line}.customdata.length === 4")
    lists = page.evaluate(f"[{line}.line.color, ...{line}.dimensions.map((each) => each.values)]")
    assert [len(each) for each in lists] == [4, 4, 4]
    ranges = page.evaluate(f"{line}.dimensions.map((each) => each.range)")
    for clicked, then in ((at, []), (place(page, "parallel", "00003"), ["00003"])):
        page.mouse.click(*clicked)
        assert selected(page) == then
    page.keyboard.press("Escape")
    image = """() => new Promise((resolve) => { Plotly.downloadImage = resolve;
      document.querySelector("#parallel-section .images button").click(); })"""
    assert page.evaluate(image)["data"][0]["customdata"] == ["00000", "00002", "00003", "00005"]
    page.click("#hidden-show")
    page.wait_for_function(f"{line}.customdata.length === 6")
    assert page.evaluate(f"{line}.dimensions.map((each) => each.range)") == ranges  # the axes do not move


def test_a_link_has_the_pins_which_are_set_side_by_side(page, viewer, demo):
    expect(page.locator("#pinned-section")).to_be_hidden()
    click(page, "00001")
    click(page, "00003", "Control")
    page.click("#selection-pin")
    address = f"{viewer.url}#demo//trials?pin=00001&pin=00003"
    assert page.url == address
    page.goto("about:blank")
    page.goto(address)
    beside = rows(page, "pinned")
    expect(page.locator("#pinned .tabulator-col")).to_have_text(["value", "00001", "00003"])
    expect(beside.filter(has_text="best_loss").locator(".tabulator-cell")).to_have_text(["best_loss", "2", "4"])
    expect(page.locator("#pinned .differs")).to_have_text(["x", "0.1", "0.3"])
    rung = beside.filter(has_text="decision at rung 1").locator(".tabulator-cell")
    expect(rung.nth(1)).to_contain_text("continued 5, cutoff 4.5")
    expect(beside.filter(has_text="cost")).to_contain_text("CPU-seconds")
    page.wait_for_function(DRAWN, arg="pinned_curves")
    legend = page.evaluate("document.getElementById('pinned_curves').data.map((each) => each.name)")
    assert legend == ["trial 00001", "trial 00003"]
    page.fill("#pinned-filter", "value:x")
    expect(beside.locator(".tabulator-cell")).to_have_text(["x", "0.1", "0.3"])
    path = saved(page, "[aria-label^='save pinned trials as CSV']")[1]
    assert path.read_text() == '"value","00001","00003"\n"x",0.1,0.3\n'
    page.fill("#pinned-filter", "")
    page.check("#only-differences")
    expect(beside.filter(has_text="status")).to_have_count(0)
    page.locator("#trials").scroll_into_view_if_needed()
    click(page, "00002")  # a pin survives clicks
    page.click("#trials >> text=00000")  # and another address within the page
    expect(page.locator("#trial-name")).to_have_text("Trial 00000: completed")
    page.wait_for_url(f"{viewer.url}#demo/00000/trials?pin=00001&pin=00003")
    page.click("#trial-close")
    page.wait_for_url(address)
    page.click("#pin-clear")
    expect(page.locator("#pinned-section")).to_be_hidden()
    assert page.url == f"{viewer.url}#demo//trials"
    for trial in ("00001", "00002"):
        press(page, trial, "p")
    tab(page, "Overview")
    page.click("#pin-show")  # leads to the tab
    expect(page.locator("#pinned-section h2")).to_be_focused()
    assert page.url == f"{viewer.url}#demo//pinned?pin=00001&pin=00002"


def test_an_update_and_a_reload_keep_what_is_selected_pinned_and_hidden(page, viewer, demo):
    write_experiment(viewer.results, "other").close()
    click(page, "00001")
    for trial, key in (("00005", "h"), ("00001", "p"), ("00002", "p")):
        press(page, trial, key)
    add_trials(demo, [6, 7])
    expect(row(page, "00006")).to_have_count(1)
    kept = {"selected": ["00001"], "pinned": ["00001", "00002"], "hidden": ["00005"]}
    assert page.evaluate(CHOICE) == kept
    assert marked(page) == ["00001"] and row(page, "00005").count() == 0
    assert page.evaluate("document.activeElement.dataset.trial") == "00002"
    drawn(page, "curves")
    has = "(trial) => document.getElementById('curves').data.some((each) => each.customdata?.includes(trial))"
    page.wait_for_function(has, arg="00006")
    assert page.evaluate(has, "00005") is False
    assert page.evaluate(COVERED, "curves") > 0
    page.evaluate("location.hash = '#'")
    expect(page.locator("#experiments")).to_be_visible()
    assert page.evaluate(CHOICE) == NONE
    opened(page, viewer, trials=7)
    page.reload()
    expect(rows(page, "trials")).to_have_count(7)
    assert page.evaluate(CHOICE) == kept
    expect(page.locator("#pinned .tabulator-col")).to_have_count(3)
    opened(page, viewer, "#other//trials")
    assert page.evaluate(CHOICE) == NONE
    opened(page, viewer, trials=7)
    assert page.evaluate(CHOICE) == kept
    page.click("#hidden-show")
    expect(rows(page, "trials")).to_have_count(8)


def test_selected_trials_that_figures_do_not_draw_are_loaded(page, viewer, written):
    add_trials(written, range(6, 420))
    page.goto(f"{viewer.url}#demo")
    drawn(page, "curves")
    there = "[...new Set(document.getElementById('curves').data.flatMap((each) => each.customdata ?? []))]"
    missing = sorted({f"{trial:05}" for trial in range(420)} - set(page.evaluate(there)))
    drawn(page, "rung_values")
    assert missing and page.evaluate("document.getElementById('rung_values').data.some((each) => each.type === 'box')")
    page.evaluate("async (trial) => (await import('/selection.js')).select([trial])", missing[0])
    for figure in ("curves", "rung_values"):
        shows_selection(page, figure)


def test_a_figure_says_which_selected_trials_it_leaves_out(page, viewer, written):
    written.write("trial_started", "00006", config={"x": 0.6}, resources={"CPU": 1}, node="n")
    opened(page, viewer, trials=7)
    drawn(page, "slices")
    expect(page.locator("#slices-missing")).to_be_hidden()
    tab(page, "Trials")
    for trial in ("00005", "00006"):
        press(page, trial, "Control+Space")
    drawn(page, "slices")
    expect(page.locator("#slices-missing")).to_contain_text("Not drawn here: 1 of the selected trials.")
    expect(page.locator("#slices-section .images")).to_be_visible()


def test_a_pinned_trial_keeps_its_colour_and_a_saved_image_has_the_selected_trials(page, viewer, written):
    opened(page, viewer, "#demo//trials?pin=00000&pin=00001")
    page.locator("#pinned_curves").scroll_into_view_if_needed()
    page.wait_for_function("() => document.getElementById('pinned_curves')?.data?.length === 2")
    press(page, "00001", "Space")
    shows_selection(page, "pinned_curves")
    # The colour of the legend, no veil, which is not opaque, and nothing in the text's colour.
    colors = page.evaluate(COLORS, "pinned_curves")
    assert "213,94,0" in colors and "28,36,48" not in colors
    assert page.evaluate(COVERED.replace("=== 255", "=== 184"), "pinned_curves") < 1000
    shows_selection(page, "curves")
    image = saved(page, "[aria-label='save as SVG: figure curves']")[1].read_text()
    assert 'href="data:image/png' in image.partition('class="layer-above"')[2]
    tab(page, "Trials")
    press(page, "00002", "ArrowDown")  # the focus is seen
    expect(row(page, "00003")).to_have_css("outline", re.compile("solid 2px$"))


def test_a_hostile_name_of_a_trial_is_selected_and_shown_as_text(page, viewer, written):
    name = "<b>&'x'"
    written.write("trial_started", name, config={"x": 0.95, "act": "a"}, resources={"CPU": 1}, node="n")
    for epoch in (1, 2):
        written.write("report", name, epoch=epoch, metrics={"loss": 9.0 - epoch})
    page.goto(f"{viewer.url}#demo")
    drawn(page, "curves")
    page.mouse.click(*place(page, "curves", "&lt;b&gt;&amp;&#x27;x&#x27;"))
    assert selected(page) == [name]
    expect(page.locator("#selection-count")).to_have_text(f"1 trial selected: {name}")
    tab(page, "Trials")
    expect(rows(page, "trials")).to_have_count(7)
    assert marked(page) == [name]
    page.click("#selection-pin")
    expect(page.locator("#pin-list a")).to_have_text([name])
