"""What the page leaves out to be fast, in chromium: each test counts requests or drawings, none asserts a time."""

import pytest
from browsing import expect, rows, write_experiment

from tests.views.test_compare import write_search

pytestmark = pytest.mark.browser
DRAWN = "name => Boolean(document.getElementById(name)?._fullLayout)"
# Notes the figures that Plotly draws from now on, and how many of them it drew before the next frame.
COUNT = """async (act) => { const all = window.drawings = [], react = Plotly.react;
  Plotly.react = (node, ...more) => { all.push(node.id); return react(node, ...more); };
  (0, eval)(act);
  await new Promise(requestAnimationFrame);
  return [...all]; }"""


def test_the_rows_and_one_figure_are_requested_before_plotly_has_loaded(page, viewer):
    write_experiment(viewer.results).close()
    held, asked = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.route("**/plotly.min.js", lambda route: held.append(route))
    with page.expect_response("**/changes?*") as answer:
        page.goto(f"{viewer.url}#demo", wait_until="commit")
    assert answer.value.ok
    assert page.evaluate("typeof Plotly") == "undefined"
    held[0].continue_()
    expect(rows(page, "trials")).to_have_count(6)
    expect(page.locator("#timeline-section")).to_be_visible()
    assert [url.count("figures=") for url in asked if "/changes?" in url][:2] == [1, 7]


def test_figures_far_from_the_screen_are_drawn_when_the_user_comes_there_and_for_paper(page, viewer):
    write_experiment(viewer.results).close()
    page.goto(f"{viewer.url}#demo//timeline")  # a link to a section waits for its figure
    page.wait_for_function(DRAWN, arg="timeline")
    expect(page.locator("#timeline-section h2")).to_be_focused()
    page.goto("about:blank")
    page.goto(f"{viewer.url}#demo")
    expect(page.locator("#timeline-section")).to_be_visible()
    page.wait_for_function(DRAWN, arg="curves")
    assert not page.evaluate(DRAWN, "timeline") and not page.evaluate(DRAWN, "slices")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(DRAWN, "slices")


HIDE = 'import("/selection.js").then(({ hide }) => hide(["00003"]))'  # the best trial is 00000


@pytest.mark.parametrize("height", [700, 7000])
def test_hiding_a_trial_draws_only_figures_with_it_and_those_on_the_screen_first(page, viewer, height):
    write_experiment(viewer.results).close()
    page.set_viewport_size({"width": 1200, "height": height})
    page.goto(f"{viewer.url}#demo")
    expect(page.locator("#timeline-section")).to_be_visible()
    for figure in ("parallel", "history", "timeline", "curves"):
        page.locator(f"#{figure}").scroll_into_view_if_needed()
        page.wait_for_function(DRAWN, arg=figure)
    page.wait_for_timeout(300)  # until nothing scrolls any more
    page.evaluate(COUNT, HIDE)
    page.wait_for_function("() => drawings.includes('curves')")
    page.wait_for_timeout(300)
    if height == 700:
        assert page.evaluate("drawings[0]") == "curves" and "timeline" not in page.evaluate("drawings")
        page.locator("#timeline").scroll_into_view_if_needed()
    page.wait_for_function("() => drawings.includes('timeline')")
    assert "history" not in page.evaluate("drawings") and (height == 700 or "parallel" not in page.evaluate("drawings"))


def test_hiding_one_of_a_comparison_draws_only_figures_on_the_screen_at_once(page, viewer):
    for seed, name in enumerate("ab"):
        write_search(viewer.results, name, seed)
    page.set_viewport_size({"width": 1200, "height": 500})
    page.goto(f"{viewer.url}#?compare=a&compare=b")
    page.wait_for_function(DRAWN, arg="compare-values")
    page.wait_for_timeout(300)
    first = page.evaluate(COUNT, "document.querySelector('#compare-legend button').click()")
    assert first[0] == "compare-epochs"
    assert "compare-values" not in first
    page.locator("#compare-values").scroll_into_view_if_needed()
    hidden = "() => document.getElementById('compare-values').data.some(({ visible }) => visible === false)"
    page.wait_for_function(hidden)
