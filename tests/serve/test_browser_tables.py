"""The page's tables in chromium: columns, filters, orders, saved files; its sections, scroll positions and console."""

import csv
import json

import pytest
from browsing import add_trial, expect, rows, write_experiment

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


def write_settings(results, name="demo"):
    """Four trials with different, nested and missing parameters: two are pruned at rung 2, two are completed."""
    journal = write_experiment(results, name)
    journal.close()
    path = results / name / "journal.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    journal = Journal(path)
    for number, config in enumerate(SETTINGS):
        trial, pruned = f"{number:05}", number % 2 == 1
        journal.write("trial_started", trial, config=config, resources={"CPU": 1}, node="n")
        for epoch in range(1, 3 if pruned else 5):
            journal.write("report", trial, epoch=epoch, metrics={"loss": number + 1 / epoch})
        at = {"epoch": 2, "rung": 2, "bracket": 0, "value": number + 0.5, "cutoff": 1.0, "recorded": number}
        journal.write("decision", trial, action="stop" if pruned else "continue", reason="at rung 2", **at)
        if not pruned:
            end = {"epoch": 4, "rung": None, "bracket": None, "value": number + 0.25, "cutoff": None, "recorded": 0}
            journal.write("decision", trial, action="stop", reason="trained its 4 epochs", **end)
        status = "pruned" if pruned else "completed"
        journal.write("trial_ended", trial, status=status, reason="at rung 2" if pruned else "trained its 4 epochs")
    return journal


def heads(page, table):
    return page.locator(f"#{table} th").all_text_contents()


def column(page, table, head):
    place = heads(page, table).index(head)
    return page.locator(f"#{table} tbody tr td:nth-child({place + 1})").all_text_contents()


def saved(page, button):
    with page.expect_download() as download:
        page.click(button)
    return download.value.suggested_filename, download.value.path().read_text()


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


def test_each_parameter_is_a_column_and_an_error_in_a_filter_is_said_beside_it(page, viewer):
    write_settings(viewer.results).close()
    page.goto(f"{viewer.url}#demo")
    expect(rows(page, "trials")).to_have_count(4)
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


def test_saved_rows_are_those_of_the_table_and_the_words_are_the_fields_own(page, viewer):
    write_settings(viewer.results).close()
    page.goto(f"{viewer.url}#demo")
    expect(rows(page, "trials")).to_have_count(4)
    page.fill("#trial-filter", "lr<0.05")
    page.click("#trials th >> text=l1")
    expect(rows(page, "trials")).to_have_count(3)
    name, text = saved(page, "[data-table=trials] >> text=CSV")
    head, *lines = csv.reader(text.splitlines())
    assert name == "demo-trials.csv" and head == [h if h != "=1+1" else "'=1+1" for h in heads(page, "trials")]
    table = [dict(zip(head, line, strict=True)) for line in lines]
    assert [row["trial"] for row in table] == ["00000", "00002", "00003"] and table[2]["lr"] == "0.00001234567"
    assert table[1]["'=1+1"] == "'=2+2" and table[2]["act"] == 'with "quotes", commas' and table[1]["opt/name"] == ""
    name, text = saved(page, "[data-table=trials] >> text=JSON")
    assert name == "demo-trials.json"
    own = json.loads(text)
    assert [row["trial"] for row in own] == ["00000", "00002", "00003"] and own[0]["opt/momentum"] == 0.9
    assert own[1]["=1+1"] == "=2+2" and own[1]["opt/name"] is None and list(own[0]) == heads(page, "trials")
    expect(rows(page, "decisions")).to_have_count(6)  # a completed trial is neither red nor called stopped
    page.fill("#decision-filter", "trial:00000")
    assert sorted(column(page, "decisions", "outcome")) == ["completed", "continued"]
    page.fill("#decision-filter", "trial:00001")
    assert column(page, "decisions", "outcome") == ["pruned"] and column(page, "decisions", "compared with") == ["1"]
    assert page.locator("#decisions .stop, #decisions .failed").count() == 0
    assert heads(page, "rungs")[3:6] == ["reached", "continued", "pruned"]
    assert heads(page, "rungs")[8:] == ["last cutoff used", "cutoff with all results", "would survive today"]
    for text in ("Replay with other pruning rules", "Were good trials pruned?"):
        expect(page.locator("summary", has_text=text)).to_have_count(1)
    assert "promoted" not in page.inner_text("main#one")


def test_all_rows_are_saved_sorted_and_scrolled_to_though_few_are_drawn(page, viewer):
    journal = write_experiment(viewer.results)
    for trial in range(6, 700):
        add_trial(journal, trial)
    journal.close()
    page.goto(f"{viewer.url}#demo")
    expect(page.locator("#trial-count")).to_have_text("first 500 of 700")
    expect(rows(page, "trials")).to_have_count(100)
    _, text = saved(page, "[data-table=decisions] >> text=JSON")
    assert len(json.loads(text)) == 700
    expect(page.locator("#trial-count")).to_have_text("700 of 700")
    for drawn in (200, 300):
        page.evaluate("document.querySelector('#trials').closest('.scroll').scrollTop = 1e6")
        expect(rows(page, "trials")).to_have_count(drawn)
    for _ in range(2):
        page.click("#trials th >> text=best_loss")
    expect(rows(page, "trials").first).to_contain_text("00699")
    expect(rows(page, "trials")).to_have_count(100)
    _, text = saved(page, "[data-table=trials] >> text=CSV")
    assert len(text.splitlines()) == 701 and text.splitlines()[1].startswith('"00699"')


def test_another_experiment_starts_at_the_top_without_filter_and_order_and_an_update_keeps_them(page, viewer):
    journal = write_experiment(viewer.results)
    for trial in range(6, 60):
        add_trial(journal, trial)
    write_experiment(viewer.results, "other").close()
    page.goto(f"{viewer.url}#demo")
    expect(rows(page, "trials")).to_have_count(60)
    page.fill("#trial-filter", "loss")
    page.fill("#trial-filter", "completed")
    page.click("#trials th >> text=best_loss")
    expect(page.locator("#timeline-section")).to_be_visible()  # a second request brings it
    page.locator("#trials").scroll_into_view_if_needed()
    box = "document.querySelector('#trials').closest('.scroll')"
    page.evaluate(f"{box}.scrollTop = 300")
    top = "document.querySelector('#trials').closest('.scroll').getBoundingClientRect().top"  # on the screen
    before = page.evaluate(top)
    add_trial(journal, 60)
    journal.close()
    expect(page.locator("#trial-count")).to_have_text("61 of 61")
    assert page.evaluate(f"{box}.scrollTop") == 300 and page.evaluate(top) == before
    assert page.evaluate("window.scrollY") > 0
    assert page.input_value("#trial-filter") == "completed"
    page.evaluate("location.hash = '#other'")
    expect(page.locator("#name")).to_have_text("other")
    expect(rows(page, "trials")).to_have_count(6)
    assert page.evaluate(f"[window.scrollY, {box}.scrollTop]") == [0, 0]
    assert page.input_value("#trial-filter") == "" and page.locator("#trials th[aria-sort]").count() == 0


def test_links_lead_to_each_section_that_is_shown(page, viewer):
    write_settings(viewer.results).close()
    page.goto(f"{viewer.url}#demo")
    links = page.locator("#sections a")
    expect(rows(page, "trials")).to_have_count(4)
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


def test_figures_have_their_place_before_they_are_drawn_and_are_saved_without_a_word_of_the_browser(page, viewer):
    write_settings(viewer.results).close()
    said = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.set_viewport_size({"width": 1280, "height": 300})
    page.goto(f"{viewer.url}#demo")
    expect(page.locator("#timeline-section")).to_be_visible()
    assert page.locator("#timeline .main-svg").count() == 0
    top = "document.getElementById('trials-section').offsetTop"
    before = page.evaluate(top)
    for name in ("curves", "history", "parallel", "slices", "timeline"):
        page.locator(f"#{name}").scroll_into_view_if_needed()
        page.wait_for_function("name => document.getElementById(name).data?.length > 0", arg=name)
        expect(page.locator(f"#{name} .main-svg").first).to_be_attached()
    assert page.evaluate(top) == before
    for kind, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        with page.expect_download() as download:
            page.focus(f"[aria-label='save as {kind}: figure curves']")
            page.keyboard.press("Enter")
        assert download.value.suggested_filename == f"demo-curves.{kind.lower()}"
        assert download.value.path().read_bytes().startswith(start)
        with page.expect_download() as download:
            page.click(f"#curves [data-title='save as {kind}']", force=True)
        assert download.value.path().read_bytes().startswith(start)
    page.locator("#curves").hover()
    page.click("#trials >> text=00002")
    page.wait_for_function("document.getElementById('trial-figure').data?.length > 0")
    assert said == []
