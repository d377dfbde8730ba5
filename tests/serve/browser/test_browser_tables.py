"""The page's tables in chromium: columns, filters, orders, saved files; its sections, scroll positions and console."""

import csv
import json

import pytest
from browsing import DRAWN, add_trials, expect, opened, rows, saved, write_experiment

from tests.serve.conftest import train
from tuner.record.journal import Journal

pytestmark = pytest.mark.browser
# Filters rows with the page's own module.
FOUND = """async ([columns, rows, texts]) => {
  const { filterOf } = await import("/filter.js");
  const fields = columns.map((head) => ({ head, value: (row) => row[head], shown: (row) => String(row[head] ?? "") }));
  return texts.map((text) => {
    try {
      const { test, hint } = filterOf(text, fields);
      return [rows.filter(test).map((row) => row.trial), hint];
    } catch (error) { return error.message; }
  });
}"""
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


def heads(page, table):
    return page.locator(f"#{table} th").all_text_contents()


def column(page, table, head):
    place = heads(page, table).index(head)
    return page.locator(f"#{table} tbody tr td:nth-child({place + 1})").all_text_contents()


def test_a_filter_finds_what_its_grammar_says(page, viewer):
    page.goto(viewer.url)
    table = [
        {"trial": "00007", "status": "pruned", "lr": 0.003, "rung": 4, "reason": "loss 3 at rung 2"},
        {"trial": "00012", "status": "completed", "lr": 0.1, "rung": None, "reason": "Diverged: the best 2 of 3"},
        {"trial": "00013", "status": "failed", "lr": "-inf", "rung": None, "reason": ""},
    ]
    texts = {
        "00007 00012 00013": [""],
        "00007 00012": ["2"],
        "00007 00013": ["lr<0.01", "reason!~diverged", "-reason~diverged", '-"best 2 of" 000'],
        "00012 00013": ["status!=pruned", "rung!=4", 'rung:""'],
        "00007": ["lr < 0.01 -status:failed", "status:PRUNED", "status~prune", "rung:4", "rung>=1", "trial:00007"],
        "00012": ["reason~diverged", '"best 2 of"', "lr=0.100"],
        "00013": ['"status":failed', "lr:-inf"],
        "": ["status:prune", "rung:2"],
    }
    cases = {text: rows.split() for rows, all_texts in texts.items() for text in all_texts} | {"trial=7": ["00007"]}
    found = page.evaluate(FOUND, [["trial", "status", "lr", "rung", "reason"], table, list(cases)])
    assert dict(zip(cases, [each[0] for each in found], strict=True)) == cases
    assert {each[1] for each in found} == {""}
    [[found, hint]] = page.evaluate(FOUND, [["trial", "rung"], [{"trial": "00004", "rung": 1}], ["rung 4"]])
    assert found == [] and "rung:4" in hint
    errors = {
        "lrr<1": "no column lrr; columns: trial, lr",
        "lr<": "its value is missing",
        "<3": "its column is missing",
        "lr<1e-2x": "1e-2x is not a number",
        'lr:"a': "a quote has no partner",
        "http://there": "no column http",
    }
    said = page.evaluate(FOUND, [["trial", "lr"], [{"trial": "00001", "lr": 1}], list(errors)])
    assert all(part in text for part, text in zip(errors.values(), said, strict=True)), said


def test_each_parameter_is_a_column_and_an_error_in_a_filter_is_said_beside_it(page, settings):
    parameters = ["lr", "l1", "act", "opt/name", "opt/momentum", "parameter status", "=1+1"]
    assert heads(page, "trials")[8:-1] == parameters and heads(page, "trials")[-1] == "reason"
    assert column(page, "trials", "opt/momentum") == ["0.9", "", "", "0.5"]
    assert column(page, "trials", "act") == ["relu", "gelu", "null", 'with "quotes", commas']
    assert column(page, "trials", "l1") == ["64", "8", "256", "123456"]  # an integer with all its digits
    for order, expected in (("ascending", ["8", "64", "256", "123456"]), ("descending", ["123456", "256", "64", "8"])):
        page.click("#trials th >> text=l1")
        assert column(page, "trials", "l1") == expected
        assert page.locator("#trials th", has_text="l1").get_attribute("aria-sort") == order
    page.click("#trials th >> text=opt/momentum")
    assert column(page, "trials", "opt/momentum") == ["0.5", "0.9", "", ""]
    page.fill("#trial-filter", "lr<0.05 status:completed parameter_status:mine")
    expect(page.locator("#trial-count")).to_have_text("1 of 4")
    assert column(page, "trials", "trial") == ["00002"]
    problem = page.locator("#trial-filter-problem")
    page.fill("#trial-filter", "lrr<0.05")
    expect(problem).to_contain_text("no column lrr; columns: trial, status,")
    expect(problem).to_contain_text("All rows are shown.")
    expect(rows(page, "trials")).to_have_count(4)
    assert page.get_attribute("#trial-filter", "aria-invalid") == "true"
    assert page.get_attribute("#trial-filter", "aria-describedby") == "trial-filter-problem"
    page.fill("#trial-filter", "lr<0")
    expect(problem).to_have_text("No row matches the filter.")
    assert page.get_attribute("#trial-filter", "aria-invalid") == "false"
    page.fill("#trial-filter", "rung 2")
    expect(problem).to_contain_text("Did you mean rung:2?")
    page.fill("#trial-filter", "")
    expect(problem).to_have_text("")
    page.focus("#trial-filter")  # the grammar is explained by the keyboard alone
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#trial-filter-help")).to_contain_text("reason~diverged")
    expect(page.get_by_role("button", name="how to filter trials")).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Enter")
    expect(page.locator("#trial-filter-help")).to_be_hidden()


def test_saved_rows_are_those_of_the_table_and_outcomes_have_the_fields_words(page, settings):
    page.fill("#trial-filter", "lr<0.05")
    page.click("#trials th >> text=l1")
    expect(rows(page, "trials")).to_have_count(3)
    name, path = saved(page, "[data-table=trials] >> text=CSV")
    head, *lines = csv.reader(path.read_text().splitlines())
    assert name == "demo-trials.csv" and head == [h if h != "=1+1" else "'=1+1" for h in heads(page, "trials")]
    table = [dict(zip(head, line, strict=True)) for line in lines]
    assert [row["trial"] for row in table] == ["00000", "00002", "00003"] and table[2]["lr"] == "0.00001234567"
    assert table[1]["'=1+1"] == "'=2+2" and table[2]["act"] == 'with "quotes", commas' and table[1]["opt/name"] == ""
    name, path = saved(page, "[data-table=trials] >> text=JSON")
    assert name == "demo-trials.json"
    own = json.loads(path.read_text())
    assert [row["trial"] for row in own] == ["00000", "00002", "00003"] and own[0]["opt/momentum"] == 0.9
    assert own[1]["=1+1"] == "=2+2" and own[1]["opt/name"] is None and list(own[0]) == heads(page, "trials")
    expect(rows(page, "decisions")).to_have_count(6)  # a completed trial is neither red nor called stopped
    for trial, outcomes in (("00000", ["completed", "continued"]), ("00001", ["pruned"])):
        page.fill("#decision-filter", f"trial:{trial}")
        assert sorted(column(page, "decisions", "outcome")) == outcomes
    assert page.locator("#decisions .stop, #decisions .failed").count() == 0
    assert "promoted" not in page.inner_text("main#one")


def test_all_rows_are_saved_sorted_and_scrolled_to_though_few_are_drawn(page, viewer, written):
    add_trials(written, range(6, 700))
    opened(page, viewer, trials=100)
    expect(page.locator("#trial-count")).to_have_text("first 500 of 700")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")  # paper says how many rows it has
    expect(page.locator("#trials caption")).to_contain_text("500 of 700 rows are printed.")
    expect(page.locator("#rungs caption")).to_be_hidden()
    page.reload()
    page.emulate_media(media="screen")
    expect(rows(page, "trials")).to_have_count(100)
    _, path = saved(page, "[data-table=decisions] >> text=JSON")
    assert len(json.loads(path.read_text())) == 700
    expect(page.locator("#trial-count")).to_have_text("700 of 700")
    for drawn in (200, 300):
        page.evaluate("document.querySelector('#trials').closest('.scroll').scrollTop = 1e6")
        expect(rows(page, "trials")).to_have_count(drawn)
    for _ in range(2):
        page.click("#trials th >> text=best_loss")
    expect(rows(page, "trials").first).to_contain_text("00699")
    expect(rows(page, "trials")).to_have_count(100)
    lines = saved(page, "[data-table=trials] >> text=CSV")[1].read_text().splitlines()
    assert len(lines) == 701 and lines[1].startswith('"00699"')


def test_another_experiment_starts_at_the_top_without_filter_and_order_and_an_update_keeps_them(page, viewer, written):
    add_trials(written, range(6, 60))
    write_experiment(viewer.results, "other").close()
    opened(page, viewer, trials=60)
    page.fill("#trial-filter", "loss")
    page.fill("#trial-filter", "completed")
    page.click("#trials th >> text=best_loss")
    expect(page.locator("#timeline-section")).to_be_visible()  # a second request brings it
    page.locator("#trials").scroll_into_view_if_needed()
    box = "document.querySelector('#trials').closest('.scroll')"
    page.evaluate(f"{box}.scrollTop = 300")
    top = f"{box}.getBoundingClientRect().top"  # on the screen
    before = page.evaluate(top)
    add_trials(written, [60])
    expect(page.locator("#trial-count")).to_have_text("61 of 61")
    assert page.evaluate(f"{box}.scrollTop") == 300 and page.evaluate(top) == before
    assert page.evaluate("window.scrollY") > 0
    assert page.input_value("#trial-filter") == "completed"
    page.evaluate("location.hash = '#other'")
    expect(page.locator("#name")).to_have_text("other")
    expect(rows(page, "trials")).to_have_count(6)
    assert page.evaluate(f"[window.scrollY, {box}.scrollTop]") == [0, 0]
    assert page.input_value("#trial-filter") == "" and page.locator("#trials th[aria-sort]").count() == 0


def test_links_lead_to_each_section_that_is_shown(page, viewer, settings):
    links = page.locator("#sections a")
    page.wait_for_function(  # the sections appear one by one
        """() => {
            const texts = (query) => [...document.querySelectorAll(query)].filter((e) => e.checkVisibility())
                .map((e) => e.textContent).join();
            return document.querySelector("#commands")?.checkVisibility()
                && texts("#sections a") === texts("#one > :is(section, details) h2");
        }"""
    )
    expect(links.filter(has_text="Rungs")).to_have_count(1)
    for link in links.all():
        link.focus()
        page.keyboard.press("Enter")
        heading = page.locator("#one :is(h2, summary):focus")
        expect(heading).to_contain_text(link.text_content())
        expect(heading).to_be_in_viewport()
    assert page.url == f"{viewer.url}#demo//commands"
    page.goto(f"{viewer.url}#demo//whatif")
    expect(page.locator("#whatif-section")).to_have_attribute("open", "")
    page.wait_for_function(  # the page may still draw after it scrolled, which shows the section again
        """() => {
            document.getElementById("rungs-section").hidden = true;
            return ![...document.querySelectorAll("#sections a")].some((link) => link.textContent.includes("Rungs"));
        }"""
    )


def test_figures_have_their_place_before_they_are_drawn_and_are_saved_without_a_word_of_the_browser(
    page, viewer, settings
):
    said = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.set_viewport_size({"width": 1280, "height": 300})
    page.reload()
    expect(page.locator("#timeline-section")).to_be_visible()
    assert page.locator("#timeline .main-svg").count() == 0
    top = "document.getElementById('trials-section').offsetTop"
    before = page.evaluate(top)
    for name in ("curves", "history", "parallel", "slices", "timeline"):
        page.locator(f"#{name}").scroll_into_view_if_needed()
        page.wait_for_function(DRAWN, arg=name)
        expect(page.locator(f"#{name} .main-svg").first).to_be_attached()
    assert page.evaluate(top) == before
    for kind, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        name, path = saved(page, f"[aria-label='save as {kind}: figure curves']", "Enter")
        assert name == f"demo-curves.{kind.lower()}" and path.read_bytes().startswith(start)
        assert saved(page, f"#curves [data-title='save as {kind}']", force=True)[1].read_bytes().startswith(start)
    page.locator("#curves").hover()
    page.click("#trials >> text=00002")
    page.wait_for_function(DRAWN, arg="trial-figure")
    assert said == []


def test_placeholders_are_whole_and_every_table_has_a_filter_and_downloads(page, demo):
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
