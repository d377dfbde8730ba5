"""The page in Debian's chromium, over a service and searches as their users start them."""

import json
import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from browsing import add_trial, expect, rows, write_experiment

pytestmark = pytest.mark.browser
LONG = 60_000  # ms: two busy cores start Ray in 10 to 30 s


def place(page, epoch, value):
    """Where in the window the curves show a point."""
    return page.evaluate(
        """([x, y]) => { const figure = document.getElementById('curves'), box = figure.getBoundingClientRect();
        const { xaxis, yaxis } = figure._fullLayout;
        return [box.left + xaxis._offset + xaxis.d2p(x), box.top + yaxis._offset + yaxis.d2p(y)]; }""",
        [epoch, value],
    )


def test_curves_hover_filter_a_zoom_that_updates_keep_and_a_setting_that_is_text(page, viewer):
    journal = write_experiment(viewer.results)
    page.goto(f"{viewer.url}#demo")
    expect(rows(page, "trials")).to_have_count(6)
    page.wait_for_function("document.getElementById('curves').data?.length > 0")
    page.mouse.move(*place(page, 3, 2.0))  # trial 0 reports 2.0 at epoch 3
    expect(page.locator("#curves .hoverlayer .hovertext").first).to_contain_text("x 0")
    buttons = page.locator("#curves .modebar-btn")
    assert buttons.count() > 0 == page.locator("#curves .modebar-btn[data-title^='Share']").count()  # Plotly's upload
    expect(rows(page, "trials").first).to_contain_text("<script>document.title='owned'</script><img src=x")
    assert page.title() == "demo: tuner" and page.locator("main img, main script").count() == 0
    page.focus("#trial-filter")
    for _ in range(5):
        page.keyboard.press("Tab")  # ?, CSV, JSON, the table, which scrolls, then its first head
    for order, first in (("ascending", "00000"), ("descending", "00005"), (None, "00000")):
        page.keyboard.press("Enter")
        expect(rows(page, "trials").first.locator("td").first).to_have_text(first)
        assert page.get_attribute("#trials th", "aria-sort") == order
    page.fill("#trial-filter", "00003")
    expect(rows(page, "trials")).to_have_count(1)
    page.evaluate("Plotly.relayout('curves', {'xaxis.range': [1.5, 2.5]})")
    page.evaluate("window.scrollTo(0, 300)")
    add_trial(journal, 6)
    journal.close()
    expect(page.locator("#trial-count")).to_have_text("1 of 7")
    x_range = page.evaluate("document.getElementById('curves').layout.xaxis.range.map(Number)")
    assert x_range == [1.5, 2.5] and page.evaluate("window.scrollY") == 300
    assert page.input_value("#trial-filter") == "00003"


@pytest.mark.parametrize("kind", ["hidden", "printed"])
def test_a_figure_gets_the_width_of_its_place_again(page, viewer, kind):
    write_experiment(viewer.results).close()
    page.goto(f"{viewer.url}#demo")
    page.wait_for_function("document.getElementById('curves').data?.length > 0")
    if kind == "hidden":  # while the window gets another width
        page.goto(f"{viewer.url}#")
        expect(page.locator("#list h1")).to_be_visible()
        page.set_viewport_size({"width": 400, "height": 900})
        page.wait_for_function("innerWidth === 400")
        page.wait_for_timeout(200)
        page.goto(f"{viewer.url}#demo")
        expect(page.locator("#name")).to_be_visible()
    else:
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(
        "(curves) => Math.abs(curves._fullLayout.width - curves.clientWidth) < 2",
        arg=page.locator("#curves").element_handle(),
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_report_costs_two_requests_for_rows_and_figures_and_is_on_the_screen(page, viewer):
    journal = write_experiment(viewer.results)
    page.goto(f"{viewer.url}#demo")
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#timeline-section")).to_be_visible()
    page.wait_for_function("document.getElementById('curves').data?.length > 0")
    page.wait_for_timeout(500)  # the page notices which figures are on the screen
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    add_trial(journal, 6)
    journal.close()
    expect(page.locator("#trial-count")).to_have_text("7 of 7")
    page.wait_for_timeout(2500)  # a request that follows would be another one for the same lines
    assert len(asked) in (2, 4)  # four if the stream looked at the journal while the test wrote it
    for number, url in enumerate(asked):
        assert "/demo/changes?since=" in url and "since=0" not in url
        assert ("figures=curves" in url) == (number % 2 == 1)  # the rows come first
        assert "figures=timeline" not in url and "figures=slices" not in url
    before = len(asked)
    page.locator("#timeline").scroll_into_view_if_needed()
    bars = "(document.getElementById('timeline').data ?? []).reduce((sum, trace) => sum + trace.base.length, 0)"
    page.wait_for_function(f"{bars} == 7")
    assert all("figures=timeline" in url for url in asked[before : before + 1])
    assert (
        page.evaluate("performance.getEntriesByType('resource').filter(e => /trials|rungs/.test(e.name)).length") == 0
    )


def test_other_rules_are_tried_on_the_recorded_curves_and_one_trial_has_an_address(page, viewer):
    write_experiment(viewer.results).close()
    page.goto(f"{viewer.url}#demo")
    page.click("#whatif-section > summary")
    expect(page.locator("#whatif-status")).to_contain_text("5 trials pruned")  # all behind the first
    expect(rows(page, "fates")).to_have_count(5)
    page.fill("#if-grace", "4")
    page.press("#if-grace", "Tab")
    expect(page.locator("#whatif-status")).to_contain_text("0 trials pruned")
    expect(page.locator("#whatif-count")).to_have_text("No trial ends differently.")
    page.fill("#if-grace", "9")
    page.press("#if-grace", "Tab")
    expect(page.locator("#whatif-status")).to_contain_text("grace")
    expect(page.locator("#whatif-count")).to_have_text("")  # nothing of the earlier answer is left
    expect(page.locator("#whatif-text")).to_be_hidden()
    expect(page.locator("#whatif")).to_be_hidden()
    page.click("#trials >> text=00003")
    expect(page.locator("#trial-name")).to_have_text("Trial 00003: completed")
    assert page.url == f"{viewer.url}#demo/00003"
    expect(rows(page, "trial-decisions")).to_have_count(1)
    page.wait_for_function("document.getElementById('trial-figure').data?.length > 0")
    expect(page.locator("#trial-retrain")).to_contain_text("--trial 00003")
    page.reload()
    expect(page.locator("#trial-name")).to_have_text("Trial 00003: completed")
    page.keyboard.press("Escape")
    expect(page.locator("#trial")).to_be_hidden()
    page.wait_for_url(f"{viewer.url}#demo")


def test_signing_in_shows_what_acts_and_leaves_no_secret_in_the_address(page, acting):
    page.goto(acting.url)
    expect(page.locator("#signin")).to_be_visible()
    expect(page.locator("#start")).to_be_hidden()
    page.click("#signin")
    page.fill("input[name=token]", "not the token at all")
    page.click("button")
    expect(page.get_by_role("alert")).to_have_text("That is not the token.")
    page.goto(acting.link)
    page.wait_for_url(acting.url)
    expect(page.locator("#start")).to_be_visible()
    expect(page.locator("#signin")).to_be_hidden()
    assert page.evaluate("document.cookie") == ""  # no script reads the session
    page.click("#signout")
    expect(page.locator("#signin")).to_be_visible()
    for gone in ("#start", "#signout"):
        expect(page.locator(gone)).to_be_hidden()


def test_a_page_elsewhere_cannot_act_nor_a_program_that_got_the_cookie(page, acting, tmp_path):
    page.goto(acting.link)
    page.wait_for_url(acting.url)
    elsewhere = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path))
    threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
    page.goto(f"http://127.0.0.1:{elsewhere.server_port}/")
    script = """url => { const form = document.createElement('form'); document.documentElement.append(form);
        form.method = 'POST'; form.enctype = 'text/plain'; form.action = url; form.submit(); }"""
    with page.expect_navigation() as went:
        page.evaluate(script, f"{acting.url}api/experiments")
    elsewhere.shutdown()
    # A cookie has no port: to the browser both pages are of one site, so it sends the session along.
    stolen = {"Cookie": went.value.request.all_headers()["cookie"], "Origin": acting.url.rstrip("/")}
    assert went.value.status == 403 and "the Origin header names another site" in page.content()
    assert "tuner" in stolen["Cookie"]  # a program sets what headers it likes
    answer = httpx.post(f"{acting.url}api/experiments", json={"space": "quadratic"}, headers=stolen, trust_env=False)
    assert answer.status_code == 401 and acting.owner.get("/api/experiments").json()["experiments"] == []


def test_a_search_is_started_watched_stopped_and_resumed(page, real):
    page.goto(real.link)
    page.wait_for_url(real.url)
    page.click("#start > summary")
    page.select_option("#start-space", "cifar")
    page.fill("#start-name", "mine")
    page.fill("#start-num_samples", "0")
    page.click("#start-form button")
    expect(page.locator("#start-status")).to_contain_text("--num-samples 0: must be 1 or more", timeout=LONG)
    page.fill("#start-num_samples", "30")
    page.click("#start-form button")
    page.wait_for_url(f"{real.url}#mine", timeout=LONG)
    expect(page.locator("#summary")).to_contain_text(re.compile("queued|starting"))
    expect(page.locator("#best")).to_contain_text("Best loss", timeout=2 * LONG)
    before = page.text_content("#summary")
    expect(page.locator("#summary")).not_to_have_text(before, timeout=LONG)  # live: no reload
    page.click("#stop")
    expect(page.locator("#extend")).to_be_visible(timeout=2 * LONG)
    expect(page.locator("#summary")).to_contain_text("· interrupted ·")
    last = json.loads((real.results / "mine" / "journal.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["state"]) == ("experiment_finished", "interrupted")
    page.fill("#more-samples", "31")
    page.click("#extend button")
    expect(page.locator("#summary")).to_contain_text("of 31 trials", timeout=LONG)
    expect(page.locator("#summary")).to_contain_text("· running ·", timeout=LONG)
    page.click("#stop")
    expect(page.locator("#extend")).to_be_visible(timeout=2 * LONG)
