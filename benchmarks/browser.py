"""The dashboard in a browser, over large searches: called by `python -m benchmarks.dashboard --browser`.

Each time ends when chromium has painted the result, and is taken inside the page. The first page includes all that a
browser loads which has nothing in its cache; the start of the service and of the browser is left out.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.peers import measure
from tuner.record.lines import Chain

Served = Callable[[Path], object]  # opens a service of a folder of results, as a context manager
SCREEN = {"width": 1280, "height": 900}
ALL_FIGURES = {"width": 1280, "height": 7000}  # a window that shows every figure at once
SETTLED_MS = 3000  # until a page does nothing more, and may update at once again
# Each function below resolves with the time, in ms, at which its state is on the screen.
HELPERS = """
window.painted = () => new Promise((resolve) => requestAnimationFrame(() => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => resolve(performance.now());
  port2.postMessage(0);
}));
window.until = async (isSo, mostMs = 120e3) => {
  for (const began = performance.now(); !isSo(); await new Promise(requestAnimationFrame)) {
    if (performance.now() > began + mostMs) throw new Error(`not within ${mostMs} ms: ${isSo}`);
  }
  return painted();
};
window.onScreen = (node) => { if (!node) return false;
  const { top, bottom } = node.getBoundingClientRect();
  return node.checkVisibility({ contentVisibilityAuto: true }) && top < innerHeight && bottom > 0; };
window.isDrawn = (node) => Boolean(node?._fullLayout && node.data?.length && node.querySelector(".svg-container"));
window.one = (selector) => document.querySelector(selector);
window.areDrawn = () => [...document.querySelectorAll("#one .figure")]
  .every((node) => !onScreen(node) || isDrawn(node));
window.isOpen = () => one("#verdict-ended")?.textContent && onScreen(one("#answer-section")) && isDrawn(one("#best"))
  && areDrawn();
window.isListed = () => document.querySelectorAll("#trials .tabulator-row").length >= 10
  && /^(\\d+) of \\1$/.test(one("#trials-count")?.textContent ?? "");
window.seconds = (ms) => (performance.timeOrigin + ms) / 1e3;
"""
CHANGED = """([trial, text]) => {
  const cells = () => one(`#trials .tabulator-row[data-trial="${trial}"]`)?.textContent ?? "";
  return until(() => cells().includes(text)).then(seconds); }"""
SELECTED = """async ([what, count]) => {
  const { select, clear, hide, showHidden } = await import("/selection.js"), { shown } = await import("/experiment.js");
  const trials = shown.now.loaded.trials.map(({ trial }) => trial), act = { select, hide }[what];
  const some = trials.filter((_, i) => i % Math.ceil(trials.length / count) === 0).slice(0, count);
  const began = performance.now();
  act(some);
  const took = await painted() - began;
  clear();
  showHidden();
  await painted();
  return took; }"""
FILTERED = """async (text) => { const box = one("#trials-filter"), began = performance.now();
  box.value = text;
  box.dispatchEvent(new Event("input"));
  return await painted() - began; }"""
SORTED = """async (head) => {
  const buttons = [...document.querySelectorAll("#trials .tabulator-col button")];
  const button = buttons.find((each) => each.textContent === head);
  const began = performance.now();
  button.click();
  return await painted() - began; }"""
COMPARED = """() => until(() => { const rows = [...document.querySelectorAll("#compare-costs .tabulator-row")];
  return rows.length && rows.every((row) => !row.textContent.includes("reading"))
    && ["epochs", "values"].every((name) => isDrawn(document.querySelector(`#compare-${name}`))); }, 600e3)"""
TOGGLED = """async () => { const began = performance.now(); document.querySelector("#compare-legend button").click();
  return await painted() - began; }"""


def pages(results: Path, journal: Path, repeats: int, served: Served, num_compared: int) -> None:
    """Measures first pages, updates, selections and comparisons, and prints a table with the limit of each."""
    times: dict[str, list[float]] = {name: [] for name in LIMITS_MS}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for number in range(repeats):
            with served(results) as server, opened(browser, server.url) as page:
                times["first page"].append(first_page(page, f"{server.url}#{journal.parent.name}"))
            with served(results) as server, opened(browser, server.url) as page:
                page.goto(f"{server.url}#{journal.parent.name}//trials", wait_until="commit")
                times["all trials in the table"].append(page.evaluate("() => until(isListed)"))
                page.wait_for_timeout(SETTLED_MS)
                times["update after a report"].append(reported(page, journal, number))
                page.wait_for_timeout(SETTLED_MS)
                times["filter"] += [page.evaluate(FILTERED, text) for text in FILTERS]
                times["sort"] += [page.evaluate(SORTED, head) for head in ("lr", "lr", "status", "best_loss")]
        for tab, what in {
            "trials": "in the table",
            "curves": "in the curves",
            "parameters": "in the parameters",
        }.items():
            screen = SCREEN if tab == "trials" else ALL_FIGURES
            with served(results) as server, opened(browser, server.url, screen) as page:
                page.goto(f"{server.url}#{journal.parent.name}//{tab}", wait_until="commit")
                whole(page)
                for _ in range(max(3, repeats)):
                    for name, choice in SELECTIONS.items():
                        times[f"{name} {what}"].append(page.evaluate(SELECTED, choice))
        if num_compared:
            names = copies(journal.parent, num_compared)
            with served(results) as server, opened(browser, server.url, {**SCREEN, "height": 3000}) as page:
                page.goto(f"{server.url}#?" + "&".join(f"compare={name}" for name in names), wait_until="commit")
                times["comparison"].append(page.evaluate(COMPARED))
                page.wait_for_timeout(SETTLED_MS)
                times["hide one of the comparison"] += [page.evaluate(TOGGLED) for _ in range(2 * max(2, repeats))]
        browser.close()
    measure.show(
        ["what", "ms", "limit (ms)"],
        [[name, measure.spread(times[name], 0), str(limit or "")] for name, limit in LIMITS_MS.items() if times[name]],
    )


FILTERS = ("lr<0.01", "lr<0.01 or l1:64,128", "completed", "reason~/epochs$/", "")
SELECTIONS = {
    "select 10 trials": ["select", 10],
    "select all trials": ["select", 10**9],
    "hide 10 trials": ["hide", 10],
    "hide half of the trials": ["hide", 5000],
}
LIMITS_MS: dict[str, int | None] = {
    "first page": 2000,
    "all trials in the table": None,
    "update after a report": 100,
    "filter": 200,
    "sort": 200,
    **{f"{name} in the {where}": 200 for where in ("table", "curves", "parameters") for name in SELECTIONS},
    "comparison": None,
    "hide one of the comparison": 200,
}


@contextmanager
def opened(browser: Browser, url: str, screen: dict[str, int] = SCREEN) -> Iterator[Page]:
    """Opens an empty page of a browser without a cache."""
    context = browser.new_context(viewport=screen)
    context.add_init_script(HELPERS)
    page = context.new_page()
    page.goto(f"{url}api/health")  # starts the renderer
    yield page
    context.close()


def first_page(page: Page, address: str) -> float:
    """Opens an address; returns the ms until it is on the screen."""
    page.goto(address, wait_until="commit")
    return page.evaluate("() => until(isOpen)")


def reported(page: Page, journal: Path, number: int) -> float:
    """Appends a report to the journal; returns the ms until the page shows it."""
    value = 0.00113 + number / 1e5  # better than all, so that it is in the row, and no part of a text there
    event = {"event": "report", "trial": "00007", "epoch": 10, "metrics": {"loss": value}}
    page.evaluate("([state, choice]) => { window.seen = eval(state)(choice); }", [CHANGED, ["00007", f"{value:g}"]])
    began = time.time()
    append(journal, {"time": began, **event})
    return 1e3 * (page.evaluate("() => window.seen") - began)


def append(journal: Path, event: dict) -> None:
    """Appends an event to a journal; reads only the end of the last line, because a search waits for it."""
    with open(journal, "r+b") as file:
        file.seek(-60, 2)
        number, crc = re.search(rb'"line": (\d+), "crc": "(\w+)"}\n$', file.read()).groups()
        chain = Chain()
        chain.number, chain.crc = int(number), int(crc, 16)
        file.write(chain.line_of(json.dumps(event).encode()))


def whole(page: Page) -> None:
    """Waits until the page has all rows, and all figures are drawn."""
    page.wait_for_timeout(2 * SETTLED_MS)
    page.evaluate("async () => (await import('/grid.js')).source.all('trials')")
    page.evaluate("() => until(areDrawn)")
    page.wait_for_timeout(2 * SETTLED_MS)


def copies(folder: Path, count: int) -> list[str]:
    """Copies an experiment's folder `count` times; returns the names."""
    names = [f"{folder.name}-{number:02}" for number in range(count)]
    for name in names:
        shutil.copytree(folder, folder.parent / name)
    return names
