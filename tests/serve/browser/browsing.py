"""What the tests in a browser share: an experiment to look at, and how its page is opened, clicked and read."""

import re

import pytest
from journals import rewrite

from tests.serve.conftest import begin, train

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
expect.set_options(timeout=30_000)  # a state is waited for as long as a busy machine may need, never a time
DRAWN = "name => document.getElementById(name)?._fullLayout && document.getElementById(name).data.length > 0"
# Where in the window a figure shows the nth point of a trial, in the first trace that has the trial.
PLACE = """([name, trial, nth]) => { const node = document.getElementById(name), layout = node._fullLayout;
  const box = node.querySelector(".svg-container").getBoundingClientRect();
  const trace = node.data.find((each) => each.customdata?.includes(trial)), i = trace.customdata.indexOf(trial) + nth;
  if (trace.type === "parcoords") {
    const { l, t, h } = layout._size, { values, range } = trace.dimensions[0];
    return [box.left + l, box.top + t + 2 + (h - 4) * (1 - (values[i] - range[0]) / (range[1] - range[0]))];
  }
  const x = layout.xaxis, y = layout.yaxis, across = trace.type === "bar" ? trace.base[i] + trace.x[i] / 2 : trace.x[i];
  return [box.left + x._offset + x.d2p(across), box.top + y._offset + y.d2p(trace.y[i])]; }"""


def write_experiment(results, name="demo"):
    """Six trials of four epochs whose settings hold markup; gives the journal."""
    facts = {"space": {"params": {}}, "data": {}}
    journal = begin(results, name, facts, num_samples=9, max_epochs=4, reduction_factor=2)
    add_trials(journal, range(6))
    return journal


def add_trials(journal, numbers):
    for number in numbers:
        config = {"x": number / 10, "act": "<script>document.title='owned'</script><img src=x onerror=alert(1)>"}
        decision = {"epoch": 1, "rung": 1, "bracket": 0, "cutoff": 4.5, "recorded": number, "value": 4.0 + number}
        decision |= {"action": "continue", "reason": f"arrived as {number}"}
        train(journal, f"{number:05}", config, [5.0 + number - epoch for epoch in range(1, 5)], decision)


def put_apart(results, start=1000.0, name="demo", journal=None):
    """Puts the events of a journal a second apart: else all of it happens in one millisecond."""
    path = results / name / "journal.jsonl"
    rewrite(path, lambda events: [{**event, "time": start + i} for i, event in enumerate(events)], journal)


def opened(page, service, address="#demo//trials", trials=6):
    page.goto(service.url + address)
    expect(rows(page, "trials")).to_have_count(trials)


def tab(page, title):
    """Opens a tab of the experiment's page, which a link names."""
    page.locator("#tabs a", has_text=re.compile(f"^{title}")).click()


def drawn(page, figure):
    """Opens the tab of a figure, scrolls to the figure and waits until it is drawn."""
    tab(page, page.locator(f".tab:has(#{figure})").get_attribute("data-title"))
    page.locator(f"#{figure}").scroll_into_view_if_needed()
    page.wait_for_function(DRAWN, arg=figure)
    page.wait_for_timeout(300)  # until nothing scrolls any more


def place(page, figure, trial, nth=0):
    return page.evaluate(PLACE, [figure, trial, nth])


def rows(page, table):
    return page.locator(f"#{table} .tabulator-row:not(.tabulator-group)")


def row(page, trial):
    return page.locator(f"#trials .tabulator-row[data-trial='{trial}']")


def heads(page, table):
    """The visible headings of a table, from left to right."""
    return page.locator(f"#{table} .tabulator-col:visible").all_inner_texts()


def column(page, table, head):
    """The cells of a column, from the top down."""
    return page.locator(f"#{table} .tabulator-cell[tabulator-field='{head}']").all_text_contents()


def sort(page, table, head, *modifiers):
    page.locator(f"#{table} .tabulator-col[tabulator-field='{head}'] button").click(modifiers=list(modifiers))


def saved(page, button, key="", **how):
    """The name and path of the file that a click on the button saves, or a key."""
    with page.expect_download() as download:
        page.press(button, key) if key else page.click(button, **how)
    return download.value.suggested_filename, download.value.path()


def signed_in(page, acting, address=""):
    page.goto(acting.link)
    page.wait_for_url(acting.url)
    if address:
        page.goto(acting.url + address)
