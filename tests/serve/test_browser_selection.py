"""One selection for all figures and tables, in chromium: by mouse, by keyboard, in the address, and during updates."""

import pytest
from browsing import add_trial, expect, rows, write_experiment

from tuner.record.events import event_of, line_of

pytestmark = pytest.mark.browser
DRAWN = "name => document.getElementById(name)?._fullLayout && document.getElementById(name).data.length > 0"
CHOICE = """async () => { const { choice } = await import("/selection.js");
  return Object.fromEntries(Object.entries(choice.now).map(([name, trials]) => [name, [...trials]])); }"""
# How much of a figure's layer is covered: 0 if it shows no selection.
COVERED = """name => { const layer = document.querySelector(`#${name} .selection-layer`);
  if (!layer?.width) return 0;
  const { data } = layer.getContext("2d").getImageData(0, 0, layer.width, layer.height);
  return data.filter((_, i) => i % 4 === 3).reduce((sum, alpha) => sum + (alpha === 255), 0); }"""
PAINTED = COVERED.replace("alpha === 255", "alpha > 0")  # also where a thin line covers a part of a pixel
# Where in the window a trace shows its i-th point.
PLACE = """([name, trial, nth]) => { const node = document.getElementById(name), layout = node._fullLayout;
  const box = node.querySelector(".svg-container").getBoundingClientRect();
  const trace = node.data.find((each) => each.customdata?.includes(trial)), i = trace.customdata.indexOf(trial) + nth;
  if (trace.type === "parcoords") {
    const { l, t, h } = layout._size, { values, range } = trace.dimensions[0];
    return [box.left + l, box.top + t + 2 + (h - 4) * (1 - (values[i] - range[0]) / (range[1] - range[0]))];
  }
  const x = layout.xaxis, y = layout.yaxis, across = trace.type === "bar" ? trace.base[i] + trace.x[i] / 2 : trace.x[i];
  return [box.left + x._offset + x.d2p(across), box.top + y._offset + y.d2p(trace.y[i])]; }"""


def opened(page, viewer, figure="curves", address="#demo", trials=6):
    page.goto(viewer.url + address)
    expect(rows(page, "trials")).to_have_count(trials)
    page.locator(f"#{figure}").scroll_into_view_if_needed()
    page.wait_for_function(DRAWN, arg=figure)
    page.wait_for_timeout(300)  # until nothing scrolls any more


def place(page, figure, trial, nth=0):
    return page.evaluate(PLACE, [figure, trial, nth])


def selected(page):
    return sorted(page.evaluate(CHOICE)["selected"])


def marked(page, table="trials"):
    return page.locator(f"#{table} tr.selected").evaluate_all("all => all.map((each) => each.dataset.trial)")


def row(page, trial, table="trials"):
    return page.locator(f"#{table} tr[data-trial='{trial}']")


@pytest.mark.parametrize("figure", ["curves", "rung_values", "history", "parallel", "slices", "timeline"])
def test_a_click_in_any_figure_selects_in_all_of_them_and_in_tables(page, viewer, figure):
    write_experiment(viewer.results).close()
    journal = viewer.results / "demo" / "journal.jsonl"
    events = [{**event_of(line), "time": 1000.0 + i} for i, line in enumerate(journal.read_bytes().splitlines())]
    journal.write_bytes(b"".join(map(line_of, events)))  # else all runs are in one millisecond
    opened(page, viewer, figure)
    before = page.evaluate(COVERED, "curves")
    trial = "00000" if figure == "history" else "00003"
    page.mouse.click(*place(page, figure, trial))
    assert selected(page) == [trial]
    assert marked(page) == [trial] and marked(page, "decisions") == [trial]
    assert row(page, trial).get_attribute("aria-selected") == "true"
    expect(page.locator("#selection-count")).to_have_text(f"1 trial selected: {trial}")
    assert page.evaluate(COVERED, figure) > 0 == before
    page.locator("#curves").scroll_into_view_if_needed()
    page.wait_for_function(f"({COVERED})('curves') > 0")
    page.keyboard.press("Escape")
    assert selected(page) == [] and marked(page) == []
    assert page.evaluate(COVERED, "curves") == 0


def test_shift_and_control_add_and_remove_a_line_leads_to_its_trial_and_a_drag_selects(page, viewer):
    write_experiment(viewer.results).close()
    opened(page, viewer)
    page.mouse.click(*place(page, "curves", "00003"))
    for key in ("Shift", "Control"):
        page.keyboard.down(key)
        page.mouse.click(*place(page, "curves", "00004", nth=len(key) % 3))
        page.keyboard.up(key)
        assert selected(page) == (["00003", "00004"] if key == "Shift" else ["00003"])
    page.click("#selection-clear")
    assert selected(page) == []
    page.locator("#history").scroll_into_view_if_needed()
    page.wait_for_function(DRAWN, arg="history")
    (x0, y0), (x1, _) = place(page, "history", "00000", 3), place(page, "history", "00000", 4)
    page.mouse.click((x0 + x1) / 2, y0 + 4)  # on the line between two points
    assert selected(page) == ["00000"]

    page.locator("#parallel").scroll_into_view_if_needed()  # a drag selects the lines and points in it
    page.wait_for_function(DRAWN, arg="parallel")
    page.wait_for_timeout(300)
    (x, low), (_, high) = place(page, "parallel", "00002"), place(page, "parallel", "00004")
    page.mouse.move(x - 8, low + 8)
    page.mouse.down()
    page.mouse.move(x + 8, high - 8, steps=4)
    page.mouse.up()
    assert selected(page) == ["00002", "00003", "00004"]
    page.check("#drag-selects")
    page.locator("#curves").scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    (x, top), (_, bottom) = place(page, "curves", "00005", 2), place(page, "curves", "00005", 2)
    page.keyboard.down("Shift")
    page.mouse.move(x - 15, top - 15)
    page.mouse.down()
    page.mouse.move(x + 15, bottom + 15, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    assert selected(page) == ["00002", "00003", "00004", "00005"]
    assert page.evaluate("document.getElementById('curves').layout.xaxis.autorange") is not False  # it did not zoom


def test_rows_are_selected_pinned_hidden_and_opened_by_keys(page, viewer):
    write_experiment(viewer.results).close()
    opened(page, viewer)
    row(page, "00000").focus()
    page.keyboard.press("Space")
    assert selected(page) == ["00000"]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Control+Space")
    assert selected(page) == ["00000", "00001"]
    page.keyboard.press("Shift+ArrowDown")
    assert selected(page) == ["00000", "00001", "00002"]
    page.keyboard.press("p")
    assert page.url == f"{viewer.url}#demo?pin=00002"
    page.keyboard.press("Escape")
    assert selected(page) == [] and page.evaluate(CHOICE)["pinned"] == ["00002"]
    page.keyboard.press("h")
    expect(rows(page, "trials")).to_have_count(5)
    expect(page.locator("#hidden-count")).to_have_text("1 trial hidden")
    assert page.evaluate("document.activeElement.dataset.trial") == "00003"
    page.keyboard.press("Enter")
    expect(page.locator("#trial-name")).to_have_text("Trial 00003: completed")
    page.keyboard.press("Escape")
    page.wait_for_url(f"{viewer.url}#demo?pin=00002")
    page.focus("#selection-ask")
    page.keyboard.press("Enter")
    expect(page.locator("#selection-help")).to_contain_text("pins the row's trial")


def test_hidden_trials_leave_figures_images_and_tables_and_come_back(page, viewer):
    write_experiment(viewer.results).close()
    opened(page, viewer)
    drawn = """name => [...new Set((document.getElementById(name).data ?? []).flatMap((each) => each.customdata ?? []))]
      .filter(Boolean).sort()"""
    row(page, "00001").locator("td").nth(2).click()
    row(page, "00004").locator("td").nth(2).click(modifiers=["Shift"])
    page.click("#selection-hide")
    expect(page.locator("#hidden-count")).to_have_text("2 trials hidden")
    expect(rows(page, "trials")).to_have_count(4)
    expect(rows(page, "decisions")).to_have_count(4)
    for name in ("curves", "slices", "timeline"):
        page.locator(f"#{name}").scroll_into_view_if_needed()
        page.wait_for_function(f'JSON.stringify(({drawn})(\'{name}\')) == \'["00000","00002","00003","00005"]\'')
    lengths = "document.getElementById('slices').data[0]"
    assert page.evaluate(f"[{lengths}.x.length, {lengths}.y.length, {lengths}.marker.color.length]") == [4, 4, 4]
    page.click("#hidden-show")
    expect(rows(page, "trials")).to_have_count(6)
    page.wait_for_function(f"({drawn})('timeline').length == 6")
    row(page, "00003").locator("td").nth(2).click()
    page.click("#selection-only")
    expect(rows(page, "trials")).to_have_count(1)
    assert selected(page) == ["00003"]

    page.keyboard.press("Escape")
    page.click("#hidden-show")
    page.locator("#parallel").scroll_into_view_if_needed()
    page.wait_for_function(DRAWN, arg="parallel")
    page.wait_for_timeout(300)
    webgl = page.locator("#parallel .gl-canvas").first
    assert page.evaluate(PAINTED, "parallel") == 0
    expect(webgl).to_be_visible()
    at = place(page, "parallel", "00004")
    page.evaluate("import('/selection.js').then(({ hide }) => hide(['00001', '00004']))")
    expect(webgl).to_be_hidden()
    few = page.evaluate(PAINTED, "parallel")
    page.mouse.click(*at)
    assert selected(page) == []
    page.mouse.click(*place(page, "parallel", "00003"))
    assert selected(page) == ["00003"]
    page.keyboard.press("Escape")
    saved = """() => new Promise((resolve) => { Plotly.downloadImage = resolve;
      document.querySelector("#parallel-section .images button").click(); })"""
    assert page.evaluate(saved)["data"][0]["customdata"] == ["00000", "00002", "00003", "00005"]
    page.evaluate("import('/selection.js').then(({ hide }) => hide(['00000', '00002', '00003']))")
    assert 0 < page.evaluate(PAINTED, "parallel") < few
    page.click("#hidden-show")
    expect(webgl).to_be_visible()
    assert page.evaluate(PAINTED, "parallel") == 0


def test_a_link_has_the_pins_which_are_set_side_by_side(page, viewer):
    write_experiment(viewer.results).close()
    opened(page, viewer)
    expect(page.locator("#pinned-section")).to_be_hidden()
    row(page, "00001").locator("td").nth(2).click()
    row(page, "00003").locator("td").nth(2).click(modifiers=["Control"])
    page.click("#selection-pin")
    address = f"{viewer.url}#demo?pin=00001&pin=00003"
    assert page.url == address
    page.goto("about:blank")
    page.goto(address)
    beside = page.locator("#pinned tbody tr")
    expect(page.locator("#pinned thead th")).to_have_text(["value", "00001", "00003"])
    expect(beside.filter(has_text="best value").locator("td")).to_have_text(["2", "4"])
    expect(page.locator("#pinned th.differs")).to_have_text(["x"])
    expect(beside.filter(has_text="decision at rung 1").locator("td").first).to_contain_text("continued 5, cutoff 4.5")
    expect(beside.filter(has_text="cost")).to_contain_text("CPU-seconds")
    page.wait_for_function(DRAWN, arg="pinned_curves")
    assert page.evaluate("document.getElementById('pinned_curves').data.map((each) => each.name)") == [
        "trial 00001",
        "trial 00003",
    ]
    page.fill("#pinned-filter", "value:x")
    expect(beside).to_have_text(["x0.10.3"])
    with page.expect_download() as saving:
        page.click("[aria-label^='save pinned as CSV']")
    assert saving.value.path().read_text() == '"value","00001","00003"\n"x",0.1,0.3\n'
    page.fill("#pinned-filter", "")
    page.check("#only-differences")
    expect(beside.filter(has_text="status")).to_have_count(0)
    page.locator("#trials").scroll_into_view_if_needed()
    row(page, "00002").locator("td").nth(2).click()  # a pin survives clicks
    page.click("#trials >> text=00000")  # and another address within the page
    expect(page.locator("#trial-name")).to_have_text("Trial 00000: completed")
    page.wait_for_url(f"{viewer.url}#demo/00000?pin=00001&pin=00003")
    page.click("#trial-close")
    page.wait_for_url(address)
    page.click("#pin-clear")
    expect(page.locator("#pinned-section")).to_be_hidden()
    assert page.url == f"{viewer.url}#demo"


def test_an_update_keeps_what_is_selected_pinned_and_hidden(page, viewer):
    journal = write_experiment(viewer.results)
    opened(page, viewer)
    row(page, "00001").locator("td").nth(2).click()
    row(page, "00005").focus()
    page.keyboard.press("h")
    row(page, "00002").focus()
    page.keyboard.press("p")
    add_trial(journal, 6)
    journal.close()
    expect(row(page, "00006")).to_have_count(1)
    assert page.evaluate(CHOICE) == {"selected": ["00001"], "pinned": ["00002"], "hidden": ["00005"]}
    assert marked(page) == ["00001"] and row(page, "00005").count() == 0
    assert page.evaluate("document.activeElement.dataset.trial") == "00002"
    page.locator("#curves").scroll_into_view_if_needed()
    drawn = "(trial) => document.getElementById('curves').data.some((each) => each.customdata?.includes(trial))"
    page.wait_for_function(drawn, arg="00006")
    assert page.evaluate(drawn, "00005") is False
    assert page.evaluate(COVERED, "curves") > 0
    page.evaluate("location.hash = '#'")
    expect(page.locator("#experiments")).to_be_visible()
    assert page.evaluate(CHOICE) == {"selected": [], "pinned": [], "hidden": []}


def test_selected_trials_that_figures_do_not_draw_are_loaded(page, viewer):
    journal = write_experiment(viewer.results)
    for trial in range(6, 420):
        add_trial(journal, trial)
    journal.close()
    opened(page, viewer, trials=100)
    drawn = "[...new Set(document.getElementById('curves').data.flatMap((each) => each.customdata ?? []))]"
    missing = sorted({f"{trial:05}" for trial in range(420)} - set(page.evaluate(drawn)))
    assert missing and page.evaluate("document.getElementById('rung_values').data.some((each) => each.type === 'box')")
    page.evaluate("async (trial) => (await import('/selection.js')).select([trial])", missing[0])
    for figure in ("curves", "rung_values"):
        page.locator(f"#{figure}").scroll_into_view_if_needed()
        page.wait_for_function(f"({COVERED})('{figure}') > 0")


def test_a_hostile_name_of_a_trial_is_selected_and_shown_as_text(page, viewer):
    journal = write_experiment(viewer.results)
    name = "<b>&'x'"
    journal.write("trial_started", name, config={"x": 0.95, "act": "a"}, resources={"CPU": 1}, node="n")
    for epoch in (1, 2):
        journal.write("report", name, epoch=epoch, metrics={"loss": 9.0 - epoch})
    journal.close()
    opened(page, viewer, trials=7)
    page.mouse.click(*place(page, "curves", "&lt;b&gt;&amp;&#x27;x&#x27;"))
    assert selected(page) == [name] == marked(page)
    expect(page.locator("#selection-count")).to_have_text(f"1 trial selected: {name}")
    page.click("#selection-pin")
    expect(page.locator("#pin-list a")).to_have_text([name])
