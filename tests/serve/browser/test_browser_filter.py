"""The filter of the page's tables in chromium: its grammar, what it says in words, its errors and completions."""

import pytest
from browsing import add_trials, column, expect, opened, rows

pytestmark = pytest.mark.browser
# Filters rows with the page's own module; a problem's text if the filter is refused or takes too long.
FOUND = """async ([columns, rows, texts]) => {
  const { filterOf } = await import("/filter.js");
  const fields = columns.map((head) => ({ head, value: (row) => row[head], shown: (row) => String(row[head] ?? "") }));
  return texts.map((text) => {
    try {
      const { test, told } = filterOf(text, fields);
      return [rows.filter(test).map((row) => row.trial), told];
    } catch (error) { return error.message; }
  });
}"""
COMPLETED = """async ([columns, rows, texts]) => {
  const { completions } = await import("/filter.js");
  const fields = columns.map((head) => ({ head, value: (row) => row[head], shown: (row) => String(row[head] ?? "") }));
  return texts.map((text) => completions(text, fields, rows));
}"""
HEADS = ["trial", "status", "lr", "rung", "reason", "best epoch"]
TABLE = [
    {"trial": "00007", "status": "pruned", "lr": 0.003, "rung": 4, "reason": "loss 3 at rung 2", "best epoch": 1},
    {"trial": "00012", "status": "completed", "lr": 0.1, "rung": None, "reason": "Diverged: the best 2 of 3"},
    {"trial": "00013", "status": "failed", "lr": "-inf", "rung": None, "reason": ""},
]


def found_by(page, texts):
    """Returns each filter's text -> the rows of TABLE that it finds, and what it says."""
    return dict(zip(texts, page.evaluate(FOUND, [HEADS, TABLE, list(texts)]), strict=True))


def test_a_filter_finds_what_its_grammar_says(page, viewer):
    page.goto(viewer.url)
    texts = {
        "00007 00012 00013": ["not lr:5", "status:pruned or not status:pruned", "reason~/.*/"],
        "00007 00012": ["2", "status:pruned,completed", "status:pruned|completed", "not status:failed", "lr:0.003,0.1"]
        + ["-status:failed", "NOT (status:failed)", "(00007 or 00012)", "reason~/rung|2 of/", "reason~/^(loss|div)/"]
        + ["lr<0.01 status!=failed or lr:0.1", "00007 || 00012", '"status":"pruned",completed', "- status:failed"],
        "00007 00013": ["lr<0.01", "reason!~diverged", "-reason~diverged", '-"best 2 of" 000', "not (lr:0.1 or 12)"],
        "00012 00013": ["status!=pruned", "rung!=4", 'rung:""', "not status:pruned lr<1", "reason!~/RUNG/"],
        "00007": ["lr < 0.01 -status:failed", "status:PRUNED", "status~prune", "rung:4", "rung>=1", "trial:00007"]
        + ["trial=7", '-"best epoch":""', '"best epoch"<3', "best_epoch<3", "Best_Epoch:1", "reason~/rung [24]$/"]
        + ["status:pruned or status:completed lr>1", "lr<1 and (rung:4 or (rung:2 and lr<1))", "trial~/^0+7$/"],
        "00012": ["reason~diverged", '"best 2 of"', "lr=0.100", "(status:pruned or status:completed) lr>0.05"]
        + ["status!=pruned,failed", "NOT status:pruned AND not status:failed", r"reason~/\d of \d/", "lr==0.1"],
        "00013": ['"status":failed', "lr:-inf", 'reason:""', "not rung:4 && not reason~/2/"],
        "": ["status:prune", "rung:2", '"or"', "status:pruned status:failed", '"rung 2)"', r"reason~/\(/"],
    }
    cases = {text: rows.split() for rows, all_texts in texts.items() for text in all_texts}
    found = found_by(page, cases)
    wrong = {text: found[text] for text, rows in cases.items() if found[text][0] != rows}
    assert wrong == {}


def test_a_filter_says_in_words_what_it_finds(page, viewer):
    page.goto(viewer.url)
    cases = {
        "pruned": 'some cell contains "pruned"',
        "status": 'some cell contains "status", not a condition: did you mean status:VALUE or status<NUMBER?',
        '"status"': 'some cell contains "status"',
        "lr<0.01 or not reason~x": 'lr < 0.01 or not reason contains "x"',
        "status:pruned,failed (lr>=1 or rung:4)": "status is one of pruned, failed and (lr >= 1 or rung is 4)",
        'rung:"" best_epoch!=2,3': "rung is empty and not best epoch is one of 2, 3",
        "reason!~/a|b/": "not reason matches /a|b/",
        "not (lr:1 and rung:2) x": 'not (lr is 1 and rung is 2) and some cell contains "x"',
    }
    said = {text: words for text, (_, words) in found_by(page, cases).items()}
    assert said == {text: f"Rows where {told}." for text, told in cases.items()}


def test_an_error_says_what_to_write_and_a_regular_expression_cannot_run_for_hours(page, viewer):
    page.goto(viewer.url)
    errors = {
        "lrr<1": "lrr<1: no column lrr; did you mean lr? Columns: trial, status, lr, rung, reason, best_epoch.",
        "statu:x": "did you mean status?",
        "lr<": "its value is missing; write lr<VALUE",
        "<3": "its column is missing",
        "<": "its column or its value is missing",
        "lr<1e-2x": "1e-2x is not a number",
        'lr:"a': "a quote has no partner",
        "http://there": "no column http; Columns:",
        "lr=>1": "write >= instead of =>",
        "lr=<1": "write <= instead of =<",
        "lr<>1": "write != instead of <>",
        "(lr<1": "a bracket has no partner; add )",
        "lr<1)": "a bracket has no partner; add (",
        "()": "a condition is missing before )",
        "or lr<1": "a condition is missing before or",
        "lr<1 and": "a condition is missing at the end",
        "not": "a condition is missing at the end",
        "reason~/[b-a]/": "out of order",
    }
    said = page.evaluate(FOUND, [HEADS, TABLE, list(errors)])
    wrong = {text: got for (text, part), got in zip(errors.items(), said, strict=True) if part not in got}
    assert wrong == {}
    slow = [
        "(a+)+$",
        "(a|aa)+$",
        "(a*)*b",
        "(a?){40}",
        "a*a*a*b",
        r"(\w)\1",
        "(?<x>a)\\k<x>",
        "([a-z]+)*$",
        "(a)?(a)?",
        "a?a?a?aaa",
        "(a|a)" * 7,
    ]
    said = page.evaluate(FOUND, [HEADS, TABLE, [f"reason~/{each}/" for each in slow]])
    assert all("a group may not repeat" in text for text in said), said
    # What is allowed still takes 50 ms for one such cell: a run over all rows ends soon.
    many = [{"trial": f"{number:05}", "reason": "a" * 300} for number in range(3000)]
    began = page.evaluate("performance.now()")
    [said] = page.evaluate(FOUND, [["trial", "reason"], many, ["reason~/a*a*b/"]])
    assert "takes too long" in said and page.evaluate("performance.now()") - began < 10_000  # all rows: 90 s


def test_a_regular_expression_in_the_first_second_of_a_page_is_not_too_slow(page, viewer):
    page.goto(viewer.url)
    page.evaluate("performance.now = () => 500")
    assert found_by(page, ["reason~/rung/"])["reason~/rung/"][0] == ["00007"]


def test_columns_and_values_are_completed(page, viewer, written):
    page.goto(viewer.url)
    cases = {
        "sta": ["status"],
        "ep": ["best_epoch"],
        "lr<1 -sta": ["lr<1 -status"],
        "(r": ["(trial", "(lr", "(rung", "(reason"],
        "status:": ["status:pruned", "status:completed", "status:failed"],
        "lr<1 status!=p": ["lr<1 status!=pruned"],
        "not (reason:lo": ['not (reason:"loss 3 at rung 2"'],
        "status": [],
        "lr<": [],
        "nothing:": [],
    }
    found = page.evaluate(COMPLETED, [HEADS, TABLE, list(cases)])
    assert dict(zip(cases, found, strict=True)) == cases
    [all_heads] = page.evaluate(COMPLETED, [HEADS, TABLE, [""]])
    assert all_heads == ["trial", "status", "lr", "rung", "reason", "best_epoch"]
    opened(page, viewer)
    offered = page.locator("#trials-names option")
    assert page.get_attribute("#trials-filter", "list") == "trials-names"
    for typed, then in (("best", ["best_loss", "best_epoch"]), ("status:c", ["status:completed"])):
        page.fill("#trials-filter", "")
        page.locator("#trials-filter").press_sequentially(typed)
        expect(offered).to_have_count(len(then))
        assert [each.get_attribute("value") for each in offered.all()] == then


def test_a_filter_over_a_long_search_stops_says_why_and_shows_all_rows(page, viewer, written):
    written.write("trial_started", "slow", config={"x": "a" * 300}, resources={"CPU": 1}, node="n")
    add_trials(written, range(6, 20))
    opened(page, viewer, trials=21)
    page.fill("#trials-filter", "trial~/^0+[1-3]$/ or status:running")
    expect(page.locator("#trials-count")).to_have_text("4 of 21")
    expect(page.locator("#trials-told")).to_have_text("Rows where trial matches /^0+[1-3]$/ or status is running.")
    assert column(page, "trials", "trial") == ["00001", "00002", "00003", "slow"]
    page.evaluate("""() => { const { now } = performance; let ms = now.call(performance);
      performance.now = () => (ms += 100); }""")  # each look at the clock finds 100 ms more
    page.fill("#trials-filter", "x~/a*a*b/")
    expect(page.locator("#trials-told")).to_contain_text("takes too long; write a simpler one. All rows are shown.")
    assert page.get_attribute("#trials-filter", "aria-invalid") == "true"
    expect(rows(page, "trials")).to_have_count(21)
