"""The verdict on the page and in the report, refused searches, and both on paper, in Debian's chromium."""

import re

import pytest
from browsing import expect, rows, write_experiment

from tuner.record.results import load
from tuner.views.report import write_report

pytestmark = pytest.mark.browser
PAPER_PX = 703  # of A4, 210 mm, without the margins of 12 mm, at 96 pixels per inch


def write_pruned(results, name="demo", trials=12):
    """A journal with more decisions and figures than one screen shows, all for pruned trials."""
    journal = write_experiment(results, name)
    for number in range(100, 100 + trials):
        trial = f"{number:05}"
        journal.write("trial_started", trial, config={"x": number / 9, "act": "relu"}, resources={"CPU": 1}, node="n")
        journal.write("report", trial, epoch=1, metrics={"loss": float(number)})
        compared = {"rung": 1, "bracket": 0, "value": float(number), "cutoff": 99.9, "recorded": number}
        journal.write("decision", trial, epoch=1, action="stop", reason="is worse than the cutoff", **compared)
        journal.write("trial_ended", trial, status="pruned", reason="is worse than the cutoff")
    return journal


def point(page, term):
    return page.locator("#verdict dt", has_text=re.compile(f"^{term}$")).locator("+ dd")


def test_the_verdict_stands_on_top_and_its_close_calls_open_their_trial(page, viewer):
    journal = write_pruned(viewer.results)
    page.goto(f"{viewer.url}#demo")
    expect(page.locator("#verdict-ended")).to_contain_text("The search is running: 18 of 18 trials have ended.")
    expect(point(page, "pruned")).to_have_text("12 of 18 trials, by asha.")
    expect(point(page, "saved")).to_contain_text("About 36 of 72 epochs (50 %)")
    journal.write("experiment_finished", state="finished", reason="")
    journal.close()
    expect(page.locator("#verdict-ended")).to_have_text("The search is done: all its 18 trials ended.")
    expect(point(page, "next")).to_contain_text("python -m tuner.audit demo --trials 5")
    expect(page.locator("#audit-section")).to_be_visible()
    tops = page.evaluate(
        "['verdict', 'summary', 'curves'].map(id => document.getElementById(id).getBoundingClientRect().top)"
    )
    assert tops == sorted(tops)
    point(page, "close calls").locator("a", has_text="00100").click()
    expect(page.locator("#trial-name")).to_have_text("Trial 00100: pruned")


def test_a_refused_search_is_red_on_the_page_and_in_the_list(page, viewer):
    journal = write_experiment(viewer.results, "refused")
    reason = "--metric los: it reports loss; give that"
    journal.write("experiment_finished", state="failed", reason=reason, refused=True)
    journal.close()
    red = "e => getComputedStyle(e).color"
    page.goto(viewer.url)
    cell = page.locator("#experiments td", has_text="refused").last
    expect(cell).to_have_text("refused")
    assert cell.evaluate(red) == "rgb(192, 57, 43)"
    best = page.locator("#experiments th").all_text_contents().index("best")
    expect(page.locator("#experiments tbody td").nth(best)).to_have_text("")
    page.goto(f"{viewer.url}#refused")
    ended = page.locator("#verdict-ended")
    expect(ended).to_have_text("The search was refused: --metric los: it reports loss; give that.")
    assert ended.evaluate(red) == "rgb(192, 57, 43)"
    expect(page.locator("#best")).to_have_text("")
    expect(page.locator("#notice")).to_be_hidden()  # the verdict has said it
    expect(page.locator("#audit-section")).to_be_hidden()


@pytest.mark.parametrize("kind", ["page", "report"])
def test_all_of_it_is_printed_light_and_within_the_paper(page, viewer, kind, tmp_path):
    write_pruned(viewer.results).close()
    path = write_report(load(viewer.results / "demo"))
    page.emulate_media(color_scheme="dark")
    page.goto(f"{viewer.url}#demo" if kind == "page" else path.as_uri())
    page.wait_for_function("document.getElementById('curves').data?.length > 0")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": PAPER_PX, "height": 1000})
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert dark != page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER_PX
    shown = page.evaluate("""[...document.querySelectorAll('.figure .main-svg')].filter(e => e.clientWidth)
        .map(e => [e.getBoundingClientRect().right, e.clientHeight])""")
    assert shown and all(right <= PAPER_PX and height <= 900 for right, height in shown)
    text = "getComputedStyle(document.querySelector('#curves .xtick text')).fill"
    assert page.evaluate(text) == "rgb(28, 36, 48)"  # the light page's
    cut = "e => e.clientHeight && e.scrollHeight > e.clientHeight + 1"
    assert page.evaluate(f"[...document.querySelectorAll('.scroll')].filter({cut}).map(e => e.innerText)") == []
    if kind == "page":
        expect(rows(page, "decisions")).to_have_count(18)
    page.emulate_media(media="screen", color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(f"{text} === 'rgb(228, 232, 239)'")
    assert len(page.pdf(format="A4")) > 20_000
