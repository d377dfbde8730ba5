"""Draws the documentation's pictures from real searches: `python -m benchmarks.pictures` writes them to docs/.

`search.png` is the table and answer of the README's search, `page.png` the dashboard's page of it, and `what-if.png`
that page's replay of another search under other rules, with an audit of it. `list.png` is the list of searches,
`compare.png` two of them side by side, and `selection.png` two pinned trials.
"""

from __future__ import annotations

import argparse
import html
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, Playwright, sync_playwright

from benchmarks.dashboard import Server
from benchmarks.peers import measure
from tuner.errors.output import fitted

DOCS = measure.REPOSITORY / "docs"
LENET = ("--space", "cifar", "--name", "lenet")
TINY = ("--space", "blobs.py", "--num-samples", "18", "--wandb", "disabled")
STYLE = "display: inline-block; margin: 0; padding: 1em; background: #10141c; color: #e6e6e6; font: 14px monospace"
COLUMNS = 116  # of the terminal in the picture; the table needs as many
SETTLED_MS = 2000  # until figures have moved to their new values
SLOW_MS = 120_000  # a busy machine draws a page in 30 s


def main() -> None:
    """Searches in a temporary folder, then writes the pictures."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        printed = tuner(folder, "run", *LENET)
        shutil.copy(measure.REPOSITORY / "tests/spaces/tiny.py", folder / "blobs.py")
        tuner(folder, "run", *TINY, "--name", "blobs")
        tuner(folder, "run", *TINY, "--name", "blobs-median", "--scheduler", "median")
        tuner(folder, "audit", "blobs", "--trials", "5")
        draw(playwright, folder, printed)


def draw(playwright: Playwright, folder: Path, printed: str) -> None:
    """Writes the pictures of the searches in `folder`, the first of which printed this."""
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1200, "height": 1200})
    page.set_default_timeout(SLOW_MS)
    draw_terminal(page, printed)
    with Server(folder / "results") as server:
        url = server.url.rstrip("/")
        draw_figures(page, f"{url}/#lenet//curves", "#curves", "body", "page.png")
        draw_what_if(page, f"{url}/#blobs//rungs")
        draw_figures(
            page, f"{url}/#blobs//trials?pin=00000&pin=00002", "#pinned_curves", "#pinned-section", "selection.png"
        )
        draw_list(page, f"{url}/#")
        draw_figures(page, f"{url}/#?compare=blobs&compare=blobs-median", "#compare-trials", "body", "compare.png")
    browser.close()


def tuner(folder: Path, command: str, *words: str) -> str:
    """Runs one of our commands in `folder`; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", f"tuner.{command}", *words],
        cwd=folder,
        env=measure.environment(),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def draw_terminal(page: Page, printed: str) -> None:
    """The lines before the first table, the last table, and the answer."""
    lines = printed.splitlines()
    borders = [number for number, line in enumerate(lines) if line.startswith("+--")]
    shown = [*lines[: borders[0]], *lines[borders[-2] :]]
    command = f"$ python -m tuner.run {' '.join(LENET)}"
    text = "\n".join([command, *(part for line in shown for part in fitted(line, COLUMNS))])
    page.set_content(f"<pre style='{STYLE}'>{html.escape(text)}</pre>")
    page.locator("pre").screenshot(path=DOCS / "search.png")


def shot(page: Page, name: str, **where: Any) -> None:
    """Takes a picture in which paths are relative to the temporary folder."""
    page.evaluate(
        """() => { const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walk.nextNode()) walk.currentNode.data = walk.currentNode.data.replace(/\\/tmp\\/[^/ ]+\\//g, ""); }"""
    )
    page.screenshot(path=DOCS / name, **where)


def draw_what_if(page: Page, url: str) -> None:
    """*What if* with the median rule instead of ASHA, and the audit."""
    page.goto(url)
    for section in ("#whatif-section", "#audit-section"):
        page.locator(f"{section} > summary").click()
    page.locator("#audited .tabulator-row").first.wait_for(state="attached")
    with page.expect_response(lambda answer: "scheduler=median" in answer.url):
        page.locator("#if-scheduler").select_option("median")
    page.locator("#whatif .main-svg").first.wait_for()
    page.wait_for_timeout(SETTLED_MS)
    page.locator("#whatif-section").evaluate("section => section.scrollIntoView()")
    shot(page, "what-if.png", clip=down_to(page, "#audit", 1))  # the command below it has this machine's paths


def draw_list(page: Page, url: str) -> None:
    """The list of experiments."""
    page.goto(url)
    page.locator("#experiments .tabulator-row").nth(2).wait_for()
    shot(page, "list.png", clip=down_to(page, "#experiments", 20))


def draw_figures(page: Page, url: str, figure: str, section: str, name: str) -> None:
    """A part of a page, once its figures are drawn: the curves, two pinned trials, or the top of a comparison."""
    page.goto(url)
    page.locator(f"{figure} .main-svg").first.wait_for()
    page.locator(section).evaluate("section => section.scrollIntoView()")
    page.wait_for_timeout(SETTLED_MS)
    shot(page, name)


def down_to(page: Page, selector: str, more: int) -> dict[str, float]:
    """The part of the screen from its top to some pixels below an element."""
    box = page.locator(selector).bounding_box()
    assert box
    return {"x": 0, "y": 0, "width": 1200, "height": box["y"] + box["height"] + more}


if __name__ == "__main__":
    main()
