"""The page's tables in chromium: columns, orders, updates, saved files, paper; scroll positions and the console."""

import csv
import json

import pytest
from browsing import (
    DRAWN,
    add_trials,
    column,
    drawn,
    expect,
    heads,
    opened,
    row,
    rows,
    saved,
    sort,
    tab,
    write_experiment,
)
from journals import Journal

from tests.serve.conftest import train

pytestmark = pytest.mark.browser
SETTINGS = [
    {"lr": 0.001, "l1": 64, "act": "relu", "opt": {"name": "sgd", "momentum": 0.9}},
    {"lr": 0.1, "l1": 8, "act": "gelu", "opt": {"name": "adam"}},
    {"lr": 0.02, "l1": 256, "act": None, "status": "mine", "=1+1": "=2+2"},
    {"lr": 0.00001234567, "l1": 123456, "act": 'with "quotes", commas', "opt": {"name": "sgd", "momentum": 0.5}},
]


@pytest.fixture
def settings(page, viewer, written):
    """The page of four trials with different, nested and missing parameters: two are pruned at rung 2."""
    path = viewer.results / "demo" / "journal.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    journal = Journal(path)
    for number, config in enumerate(SETTINGS):
        decisions = [{"epoch": 2, "rung": 2, "bracket": 0, "value": number + 0.5, "cutoff": 1.0, "reason": "at rung 2"}]
        if number % 2:
            end = {"status": "pruned", "reason": "at rung 2"}
            decisions[0]["action"] = "stop"
        else:
            end = {"status": "completed", "reason": "trained its 4 epochs"}
            decisions[0]["action"] = "continue"
            decisions.append({"epoch": 4, "value": number + 0.25, "action": "stop", "reason": end["reason"]})
        losses = [number + 1 / epoch for epoch in range(1, 3 if number % 2 else 5)]
        train(journal, f"{number:05}", config, losses, *decisions, **end)
    journal.close()
    opened(page, viewer, trials=4)


def test_each_parameter_is_a_column_and_an_error_in_a_filter_is_said_beside_it(page, settings):
    parameters = ["lr", "l1", "act", "opt/name", "opt/momentum", "parameter status", "=1+1"]
    assert heads(page, "trials")[8:-1] == parameters and heads(page, "trials")[-1] == "reason"
    assert column(page, "trials", "opt/momentum") == ["0.9", "", "", "0.5"]
    assert column(page, "trials", "act") == ["relu", "gelu", "null", 'with "quotes", commas']
    assert column(page, "trials", "l1") == ["64", "8", "256", "123456"]  # an integer with all its digits
    head = page.locator("#trials .tabulator-col[tabulator-field=l1]")
    for order, expected in (("ascending", ["8", "64", "256", "123456"]), ("descending", ["123456", "256", "64", "8"])):
        sort(page, "trials", "l1")
        expect(head).to_have_attribute("aria-sort", order)
        assert column(page, "trials", "l1") == expected
    sort(page, "trials", "opt/momentum")
    expect(head).to_have_attribute("aria-sort", "none")
    assert column(page, "trials", "opt/momentum") == ["0.5", "0.9", "", ""]
    page.fill("#trials-filter", "lr<0.05 status:completed parameter_status:mine")
    expect(page.locator("#trials-count")).to_have_text("1 of 4")
    assert column(page, "trials", "trial") == ["00002"]
    told = page.locator("#trials-told")
    page.fill("#trials-filter", "lrr<0.05")
    expect(told).to_contain_text("no column lrr; did you mean lr? Columns: trial, status,")
    expect(told).to_contain_text("All rows are shown.")
    expect(rows(page, "trials")).to_have_count(4)
    assert page.get_attribute("#trials-filter", "aria-invalid") == "true"
    assert page.get_attribute("#trials-filter", "aria-describedby") == "trials-told"
    page.fill("#trials-filter", "lr<0")
    expect(told).to_have_text("Rows where lr < 0.")
    expect(page.locator("#trials-count")).to_have_text("0 of 4")
    assert page.get_attribute("#trials-filter", "aria-invalid") == "false"
    page.fill("#trials-filter", "")
    expect(told).to_have_text("")
    page.focus("#trials-filter")  # the grammar is explained by the keyboard alone
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#trials-help")).to_contain_text("reason~diverged")
    expect(page.get_by_role("button", name="how to filter trials")).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Enter")
    expect(page.locator("#trials-help")).to_be_hidden()


def test_shift_sorts_by_several_columns_and_empty_cells_stay_last(page, settings):
    sort(page, "trials", "opt/name")
    sort(page, "trials", "l1", "Shift")
    expect(page.locator("#trials .tabulator-col[aria-sort=ascending]")).to_have_count(2)
    assert column(page, "trials", "trial") == ["00001", "00000", "00003", "00002"]  # adam, sgd 64, sgd 123456, none
    page.locator("#trials .tabulator-col[tabulator-field=l1] button").focus()
    page.keyboard.press("Shift+Enter")
    expect(page.locator("#trials .tabulator-col[aria-sort=descending]")).to_have_count(1)
    assert column(page, "trials", "trial") == ["00001", "00003", "00000", "00002"]
    sort(page, "trials", "opt/name")  # alone
    expect(page.locator("#trials .tabulator-col[aria-sort=descending]")).to_have_count(1)
    assert column(page, "trials", "opt/name") == ["sgd", "sgd", "adam", ""]


def test_columns_that_the_user_hides_or_wants_stay_so_and_one_moves_by_keys(page, viewer, settings):
    def choose(head, is_shown):
        tools = page.locator(".tools:has(#trials-filter)")
        if tools.locator("details").get_attribute("open") is None:
            tools.locator("summary").click()
        tools.get_by_label(head, exact=True).set_checked(is_shown)

    other = write_experiment(viewer.results, "other")
    assert "attempts" not in heads(page, "trials")  # few users need it
    choose("attempts", True)
    choose("duration", False)
    for _ in range(2):
        assert "attempts" in heads(page, "trials") and "duration" not in heads(page, "trials")
        page.reload()
        expect(rows(page, "trials")).to_have_count(4)
    opened(page, viewer, "#other//trials")  # of the same space
    assert "attempts" in heads(page, "trials") and "duration" not in heads(page, "trials")
    config, metrics = {"x": 0.5, "act": "a", "row": 1, "key": 2}, {"loss": 1.0, "epochs": 70, "best_loss": 80}
    other.write("trial_started", "00006", config=config, resources={"CPU": 1}, node="n")
    other.write("report", "00006", epoch=1, metrics=metrics)  # an update with columns of any name
    expect(page.locator("#trials .tabulator-col[tabulator-field='metric epochs']")).to_be_visible()
    expect(rows(page, "trials")).to_have_count(7)
    assert "attempts" in heads(page, "trials") and "duration" not in heads(page, "trials")
    names = {"row": "1", "key": "2", "metric epochs": "70", "epochs": "1", "metric best_loss": "80", "best_loss": "1"}
    assert {name: column(page, "trials", name)[6] for name in names} == names
    choose("duration", True)
    assert "duration" in heads(page, "trials")
    page.locator("#trials .tabulator-col[tabulator-field=status] button").focus()
    page.keyboard.press("Alt+ArrowRight")
    assert heads(page, "trials")[:3] == ["trial", "best_loss", "status"]
    page.keyboard.press("Alt+ArrowRight")  # it keeps the focus
    page.keyboard.press("Alt+ArrowLeft")
    page.keyboard.press("Alt+ArrowLeft")
    assert heads(page, "trials")[:3] == ["trial", "status", "best_loss"]
    page.keyboard.press("ArrowRight")  # without Alt, nothing moves
    assert heads(page, "trials")[:3] == ["trial", "status", "best_loss"]
    page.locator("#trials .tabulator-col[tabulator-field=last_loss] button").focus()
    page.keyboard.press("Alt+ArrowRight")  # beyond hidden columns
    assert heads(page, "trials").index("metric epochs") < heads(page, "trials").index("last_loss")
    choose("last_epochs", True)  # its width is not that of a hidden column
    page.reload()
    expect(rows(page, "trials")).to_have_count(7)
    widths = page.locator("#trials .tabulator-col:visible").evaluate_all("all => all.map((each) => each.clientWidth)")
    assert min(widths) >= 40 and "last_epochs" in heads(page, "trials")
    other.close()


def test_an_update_changes_single_cells_and_keeps_the_rows_their_focus_and_the_selection_of_a_text(page, demo):
    demo.write("trial_started", "00006", config={"x": 0.9}, resources={"CPU": 1}, node="n")
    cells = row(page, "00006").locator(".tabulator-cell")
    expect(cells.first).to_have_text("00006")
    kept = """() => { const cell = (trial, head) => document.querySelector(
      `#trials [data-trial="${trial}"] .tabulator-cell[tabulator-field="${head}"]`);
      window.kept = [cell("00006", "epochs"), cell("00006", "status"), cell("00001", "best_loss")];
      getSelection().selectAllChildren(kept[2]); }"""
    seen = "() => kept.map((each) => [each.isConnected, each.textContent, each.className.includes('completed')])"
    page.evaluate(kept)
    assert page.evaluate(seen) == [[True, "0", False], [True, "running", False], [True, "2", False]]
    row(page, "00006").focus()
    demo.write("report", "00006", epoch=1, metrics={"loss": 7.0})
    demo.write("trial_ended", "00006", status="completed", reason="")
    page.wait_for_function("kept[1].textContent === 'completed'")
    assert page.evaluate(seen) == [[True, "1", False], [True, "completed", True], [True, "2", False]]
    assert page.evaluate("document.activeElement.dataset.trial") == "00006"
    assert page.evaluate("String(getSelection())") == "2"
    for prepare in (lambda: sort(page, "trials", "epochs"), lambda: page.fill("#trials-filter", "epochs>0")):
        prepare()  # rows move, or are tested again
        row(page, "00006").focus()
        epochs = int(page.evaluate("kept[0].textContent"))
        demo.write("report", "00006", epoch=epochs + 1, metrics={"loss": 7.0})
        page.wait_for_function(f"kept[0].textContent === '{epochs + 1}'")
        assert page.evaluate(seen)[0][0] and page.evaluate("document.activeElement.dataset.trial") == "00006"
    assert column(page, "trials", "trial")[0] == "00006"  # by its epochs, 3; the others have 4


def test_saved_rows_are_those_of_the_table_and_outcomes_have_the_fields_words(page, settings):
    page.fill("#trials-filter", "lr<0.05")
    sort(page, "trials", "l1")
    expect(rows(page, "trials")).to_have_count(3)
    name, path = saved(page, "[aria-label^='save trials as CSV']")
    head, *lines = csv.reader(path.read_text().splitlines())
    shown = [each if each != "=1+1" else "'=1+1" for each in heads(page, "trials")]
    rare = {"train_s", "last_train_s", "attempts", "CPU-hours", "GPU-hours", "epochs saved", "error"}  # saved, too
    assert name == "demo-trials.csv" and [each for each in head if each not in rare] == shown and rare < set(head)
    table = [dict(zip(head, line, strict=True)) for line in lines]
    assert [row["trial"] for row in table] == ["00000", "00002", "00003"] and table[2]["lr"] == "0.00001234567"
    assert table[1]["'=1+1"] == "'=2+2" and table[2]["act"] == 'with "quotes", commas' and table[1]["opt/name"] == ""
    name, path = saved(page, "[aria-label^='save trials as JSON']")
    assert name == "demo-trials.json"
    own = json.loads(path.read_text())
    assert [row["trial"] for row in own] == ["00000", "00002", "00003"] and own[0]["opt/momentum"] == 0.9
    assert own[1]["=1+1"] == "=2+2" and own[1]["opt/name"] is None
    assert [each.removeprefix("'") for each in head] == list(own[0]) and own[0]["train_s"] == 0.5
    tab(page, "Rungs")
    expect(rows(page, "decisions")).to_have_count(6)  # a completed trial is neither red nor called stopped
    for trial, outcomes in (("00000", ["completed", "continued"]), ("00001", ["pruned"])):
        page.fill("#decisions-filter", f"trial:{trial}")
        assert sorted(column(page, "decisions", "outcome")) == outcomes
    assert page.locator("#decisions .stop, #decisions .failed").count() == 0
    assert "promoted" not in page.inner_text("main#one")


def test_all_rows_are_loaded_sorted_saved_and_scrolled_to_though_few_are_drawn(page, viewer, written):
    add_trials(written, range(6, 1100))
    page.goto(f"{viewer.url}#demo//trials")
    expect(page.locator("#trials-count")).to_have_text("1100 of 1100")  # the first answer has 500
    assert 10 < rows(page, "trials").count() < 100
    page.evaluate("document.querySelector('#trials .tabulator-tableholder').scrollTop = 1e6")
    expect(row(page, "01099")).to_be_visible()
    for _ in range(2):
        sort(page, "trials", "best_loss")
    page.evaluate("document.querySelector('#trials .tabulator-tableholder').scrollTop = 0")
    expect(rows(page, "trials").first).to_contain_text("01099")
    rows(page, "trials").first.focus()
    for _ in range(60):
        page.keyboard.press("ArrowDown")  # beyond the rows that were drawn
    assert page.evaluate("document.activeElement.dataset.trial") == "01039"
    lines = saved(page, "[aria-label^='save trials as CSV']")[1].read_text().splitlines()
    assert len(lines) == 1101 and lines[1].startswith('"01099"')
    page.emulate_media(media="print")  # paper says how many rows it has
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    printed = page.locator("#trials-section .tabulator-print-table tbody tr")
    assert printed.count() == 1000 and printed.first.locator("td").first.inner_text() == "01099"
    expect(page.locator("#trials-section .printed")).to_have_text("1000 of 1100 rows are printed.")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    expect(page.locator("#trials-section .printed")).to_be_hidden()
    expect(page.locator("#trials-section .tabulator-print-table")).to_have_count(0)
    tab(page, "Rungs")
    expect(page.locator("#decisions-count")).to_have_text("1100 of 1100")
    _, path = saved(page, "[aria-label^='save decisions as JSON']")
    assert len(json.loads(path.read_text())) == 1100


def test_another_experiment_starts_at_the_top_without_filter_and_order_and_an_update_keeps_them(page, viewer, written):
    add_trials(written, range(6, 60))
    write_experiment(viewer.results, "other").close()
    page.goto(f"{viewer.url}#demo//trials")
    expect(page.locator("#trials-count")).to_have_text("60 of 60")
    page.fill("#trials-filter", "completed")
    sort(page, "trials", "best_loss")
    box = "document.querySelector('#trials .tabulator-tableholder')"
    page.set_viewport_size({"width": 1200, "height": 500})
    page.evaluate(f"{box}.scrollTop = 300; scrollTo(0, 150)")
    page.wait_for_timeout(300)
    place = f"[{box}.scrollTop, {box}.getBoundingClientRect().top, scrollY]"
    before = page.evaluate(place)
    add_trials(written, [60])
    expect(page.locator("#trials-count")).to_have_text("61 of 61")
    assert page.evaluate(place) == before and before[0] == 300 and before[2] > 0
    assert page.input_value("#trials-filter") == "completed"
    page.evaluate("location.hash = '#other//trials'")
    expect(page.locator("#name")).to_have_text("other")
    expect(rows(page, "trials")).to_have_count(6)
    assert page.evaluate(f"[scrollY, {box}.scrollTop]") == [0, 0]
    assert page.input_value("#trials-filter") == "" and page.locator("#trials [aria-sort=ascending]").count() == 0


def test_figures_have_their_place_before_they_are_drawn_and_are_saved_without_a_word_of_the_browser(
    page, viewer, settings
):
    said = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.set_viewport_size({"width": 1280, "height": 300})
    page.goto("about:blank")
    page.goto(f"{viewer.url}#demo//parameters")
    page.wait_for_function(DRAWN, arg="parallel")
    assert page.locator("#slices .main-svg").count() == 0
    top = "document.getElementById('importance-section').offsetTop"
    before = page.evaluate(top)
    drawn(page, "slices")
    assert page.evaluate(top) == before
    drawn(page, "curves")
    for kind, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        name, path = saved(page, f"[aria-label='save as {kind}: figure curves']", "Enter")
        assert name == f"demo-curves.{kind.lower()}" and path.read_bytes().startswith(start)
        assert saved(page, f"#curves [data-title='save as {kind}']", force=True)[1].read_bytes().startswith(start)
    page.locator("#curves").hover()
    tab(page, "Trials")
    page.click("#trials >> text=00002")
    page.wait_for_function(DRAWN, arg="trial-figure")
    assert said == []


def test_placeholders_are_whole_and_every_table_has_a_filter_columns_and_downloads(page, viewer, written):
    cut = """() => { const pen = document.createElement("canvas").getContext("2d");
      return [...document.querySelectorAll("input[type=search]")].filter((box) => { const style = getComputedStyle(box);
        pen.font = `${style.fontSize} ${style.fontFamily}`;
        return box.clientWidth && pen.measureText(box.placeholder).width > box.clientWidth - 16; })
        .map(({ id }) => id); }"""
    write_experiment(viewer.results, "other").close()
    for address, table in (
        ("#", "experiments"),
        ("#?compare=demo&compare=other", "compare-costs"),
        ("#demo//trials", "trials"),
        ("#demo//rungs", "decisions"),
        ("#demo//costs", "costs"),
    ):
        page.goto(viewer.url + address)
        expect(rows(page, table).first).to_be_visible()
        assert page.evaluate(cut) == []
        tools = page.locator(f".tools:has(#{table}-filter)")
        assert tools.locator("button").all_text_contents() == ["?", "CSV", "JSON"]
        assert tools.locator("summary").all_text_contents() == ["columns"]
    tab(page, "Rungs")
    page.fill("#rungs-filter", "rung:7")
    expect(page.locator("#rungs-count")).to_have_text("0 of 1")
    page.set_viewport_size({"width": 640, "height": 400})  # at 200 percent, the bars leave the page its height
    bars = page.evaluate("['nav', '#selection'].map((bar) => document.querySelector(bar).offsetHeight)")
    assert sum(bars) <= 400 / 5 and max(bars) < 45
    narrow = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    page.wait_for_function(narrow)  # Plotly redraws its figures a moment after the window has changed
