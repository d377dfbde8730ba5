"""The page of an experiment in chromium: figures, requests, replays, its verdict, paper; signing in and starting."""

import json
import re
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from browsing import DRAWN, add_trials, column, drawn, expect, place, row, rows, signed_in, tab

from tests.serve.conftest import ended, train
from tuner.record.results import load
from tuner.views.report import write_report
from tuner.views.whatif import REPLAYED

pytestmark = pytest.mark.browser
PAPER_PX = 703  # of A4, 210 mm, without the margins of 12 mm, at 96 pixels per inch


def test_curves_hover_filter_a_zoom_that_updates_keep_and_a_setting_that_is_text(page, demo):
    expect(rows(page, "trials").first).to_contain_text("<script>document.title='owned'</script><img src=x")
    assert page.title() == "6 of 9 demo: tuner" and page.locator("main img, main script").count() == 0
    page.focus("#trials-filter")
    for _ in range(5):
        page.keyboard.press("Tab")  # ?, columns, CSV, JSON, then the first heading
    for order, first in (("ascending", "00000"), ("descending", "00005"), ("none", "00000")):
        page.keyboard.press("Enter")
        expect(rows(page, "trials").first.locator("a")).to_have_text(first)
        assert page.locator("#trials .tabulator-col").first.get_attribute("aria-sort") == order
    page.fill("#trials-filter", "00003")
    expect(rows(page, "trials")).to_have_count(1)
    drawn(page, "curves")
    page.mouse.move(*place(page, "curves", "00000", nth=2))
    expect(page.locator("#curves .hoverlayer .hovertext").first).to_contain_text("x 0")
    buttons = page.locator("#curves .modebar-btn")
    assert buttons.count() > 0 == page.locator("#curves .modebar-btn[data-title^='Share']").count()  # Plotly's upload
    page.evaluate("Plotly.relayout('curves', {'xaxis.range': [1.5, 2.5]})")
    page.set_viewport_size({"width": 1200, "height": 400})
    page.evaluate("window.scrollTo(0, 200)")
    add_trials(demo, [6])
    page.wait_for_function("document.getElementById('curves').data.some((each) => each.customdata?.includes('00006'))")
    x_range = page.evaluate("document.getElementById('curves').layout.xaxis.range.map(Number)")
    assert x_range == [1.5, 2.5] and page.evaluate("window.scrollY") == 200
    tab(page, "Trials")
    expect(page.locator("#trials-count")).to_have_text("1 of 7")
    assert page.input_value("#trials-filter") == "00003"


@pytest.mark.parametrize("kind", ["hidden", "printed"])
def test_a_figure_gets_the_width_of_its_place_again(page, viewer, demo, kind):
    drawn(page, "curves")
    if kind == "hidden":  # while the window gets another width
        page.goto(f"{viewer.url}#")
        expect(page.locator("#list h1")).to_be_visible()
        page.set_viewport_size({"width": 400, "height": 900})
        page.wait_for_function("innerWidth === 400")
        page.wait_for_timeout(200)
        page.goto(f"{viewer.url}#demo//curves")
        expect(page.locator("#name")).to_be_visible()
    else:
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(
        "(curves) => Math.abs(curves._fullLayout.width - curves.clientWidth) < 2",
        arg=page.locator("#curves").element_handle(),
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_report_costs_two_requests_for_rows_and_figures_and_is_on_the_screen(page, demo):
    expect(page.locator("#live")).to_have_text("live")
    drawn(page, "curves")
    page.wait_for_timeout(500)  # the page notices which figures are on the screen
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    add_trials(demo, [6])
    expect(page.locator("#summary")).to_contain_text("7 of 9 trials")
    page.wait_for_timeout(2500)  # a request that follows would be another one for the same lines
    assert len(asked) in (2, 4)  # four if the stream looked at the journal while the test wrote it
    for number, url in enumerate(asked):
        assert "/demo/changes?since=" in url and "since=0" not in url
        assert ("figures=curves" in url) == (number % 2 == 1)  # the rows come first
        assert "figures=timeline" not in url and "figures=slices" not in url  # those of other tabs
    before = len(asked)
    tab(page, "Resources")
    bars = "(document.getElementById('timeline').data ?? []).reduce((sum, trace) => sum + trace.base.length, 0)"
    page.wait_for_function(f"{bars} == 7")
    assert "figures=timeline" in asked[before]
    loaded = "performance.getEntriesByType('resource').filter(e => /trials|rungs/.test(e.name)).length"
    assert page.evaluate(loaded) == 0


def test_the_rows_and_the_open_tabs_first_figure_are_requested_before_plotly_has_loaded(page, viewer, written):
    held, asked = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.route("**/plotly.min.js", lambda route: held.append(route))
    with page.expect_response("**/changes?*") as answer:
        page.goto(f"{viewer.url}#demo//trials", wait_until="commit")
    assert answer.value.ok
    assert page.evaluate("typeof Plotly") == "undefined"
    held.pop().continue_()
    expect(rows(page, "trials")).to_have_count(6)
    for address, figure in (("#demo//curves", "curves"), ("#demo", "best"), ("#demo//parameters", "parallel")):
        asked.clear()
        page.goto("about:blank")
        page.goto(viewer.url + address, wait_until="commit")
        while not held:
            page.wait_for_timeout(20)
        held.pop().continue_()
        page.wait_for_function(DRAWN, arg=figure)
        first, second = [url for url in asked if "/changes?" in url][:2]
        assert first.count("figures=") == 1 and f"figures={figure}" in first and second.count("figures=") == 11


def test_figures_far_from_the_screen_are_drawn_when_the_user_comes_there_and_for_paper(page, viewer, written):
    page.goto(f"{viewer.url}#demo//timeline")  # a link to a section opens its tab and waits for its figure
    page.wait_for_function(DRAWN, arg="timeline")
    expect(page.locator("#timeline-section h2")).to_be_focused()
    page.set_viewport_size({"width": 1200, "height": 300})
    page.goto("about:blank")
    page.goto(f"{viewer.url}#demo//parameters")
    page.wait_for_function(DRAWN, arg="parallel")
    assert not page.evaluate(DRAWN, "slices") and not page.evaluate(DRAWN, "timeline")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(DRAWN, "slices") and not page.evaluate(DRAWN, "timeline")  # paper has the open tab


def test_other_rules_are_tried_on_the_recorded_curves_and_one_trial_has_an_address(page, viewer, demo):
    tab(page, "Rungs")
    page.click("#whatif-section > summary")
    expect(page.locator("#whatif-status")).to_contain_text("5 trials pruned")  # all behind the first
    expect(rows(page, "fates")).to_have_count(5)
    expect(page.locator("#if-scheduler option")).to_have_text(list(REPLAYED))
    for scheduler, disabled in (("fifo", True), ("hyperband", True), ("median", False), ("asha", False)):
        page.select_option("#if-scheduler", scheduler)
        expect(page.locator(f"#if-grace:{'disabled' if disabled else 'enabled'}")).to_be_visible()
    for grace, says, count in ((4, "0 trials pruned", "No trial ends differently."), (9, "grace", "")):
        page.fill("#if-grace", str(grace))
        page.press("#if-grace", "Tab")
        expect(page.locator("#whatif-status")).to_contain_text(says)
        expect(page.locator("#whatif-count")).to_have_text(count)
    for gone in ("#whatif-text", "#whatif"):  # nothing of the earlier answer is left
        expect(page.locator(gone)).to_be_hidden()
    tab(page, "Trials")
    page.click("#trials >> text=00003")
    expect(page.locator("#trial-name")).to_have_text("Trial 00003: completed")
    assert page.url == f"{viewer.url}#demo/00003/trials"
    expect(rows(page, "trial-decisions")).to_have_count(1)
    page.wait_for_function(DRAWN, arg="trial-figure")
    expect(page.locator("#trial-retrain")).to_contain_text("--trial 00003")
    page.reload()
    expect(page.locator("#trial-name")).to_have_text("Trial 00003: completed")
    page.keyboard.press("Escape")
    expect(page.locator("#trial")).to_be_hidden()
    page.wait_for_url(f"{viewer.url}#demo//trials")
    expect(row(page, "00003")).to_be_visible()


def prune(journal, trials=12):
    """Adds pruned trials: with them, the journal has more decisions and figures than one screen shows."""
    for number in range(100, 100 + trials):
        pruned = {"status": "pruned", "reason": "is worse than the cutoff"}
        decision = {"epoch": 1, "rung": 1, "bracket": 0, "value": float(number), "cutoff": 99.9, "recorded": number}
        decision |= {"action": "stop", "reason": pruned["reason"]}
        train(journal, f"{number:05}", {"x": number / 9, "act": "relu"}, [float(number)], decision, **pruned)


def test_the_verdict_follows_the_best_setting_and_its_close_calls_open_their_trial(page, viewer, written):
    def point(term):
        return page.locator("#verdict-points dt", has_text=re.compile(f"^{term}$")).locator("+ dd")

    prune(written)
    page.goto(f"{viewer.url}#demo")
    expect(page.locator("#verdict-ended")).to_contain_text("The search is running: 18 of 18 trials have ended.")
    expect(point("pruned")).to_have_text("12 of 18 trials, by asha.")
    expect(point("saved")).to_contain_text("About 36 of 72 epochs (50 %)")
    written.write("experiment_finished", state="finished", reason="")
    expect(page.locator("#verdict-ended")).to_have_text("The search is done: all its 18 trials ended.")
    expect(point("next")).to_contain_text("python -m tuner.audit demo --trials 5")
    top = "id => document.getElementById(id).getBoundingClientRect().top"
    tops = [page.evaluate(top, each) for each in ("summary", "best-value", "best", "verdict-ended", "history")]
    assert tops == sorted(tops)
    tab(page, "Rungs")
    expect(page.locator("#audit-section")).to_be_visible()
    tab(page, "Overview")
    point("close calls").locator("a", has_text="00100").click()
    expect(page.locator("#trial-name")).to_have_text("Trial 00100: pruned")


def test_a_refused_search_is_red_on_the_page_and_in_the_list(page, viewer, written):
    written.write(
        "experiment_finished", state="failed", reason="--metric los: it reports loss; give that", refused=True
    )
    red = "e => getComputedStyle(e).color === 'rgb(192, 57, 43)'"
    page.goto(viewer.url)
    cell = page.locator("#experiments .tabulator-cell", has_text="refused")
    expect(cell).to_have_text("refused")
    assert cell.evaluate(red) and column(page, "experiments", "best") == [""]
    page.goto(f"{viewer.url}#demo")
    ended = page.locator("#verdict-ended")
    expect(ended).to_have_text("The search was refused: --metric los: it reports loss; give that.")
    assert ended.evaluate(red)
    expect(page.locator("#nothing")).to_have_text("A refused search has no best trial.")
    for gone in ("#notice", "#answer-section", "#best-section"):  # the verdict has said the notice
        expect(page.locator(gone)).to_be_hidden()


@pytest.mark.parametrize("kind", ["curves", "rungs", "report"])
def test_the_open_tab_and_the_report_are_printed_light_and_within_the_paper(page, viewer, written, kind):
    prune(written)
    path = write_report(load(viewer.results / "demo"))
    page.emulate_media(color_scheme="dark")
    page.goto(path.as_uri() if kind == "report" else f"{viewer.url}#demo//{kind}")
    figure = "rung_values" if kind == "rungs" else "curves"
    page.wait_for_function(f"document.getElementById('{figure}').data?.length > 0")
    if kind == "rungs":
        expect(page.locator("#decisions-count")).to_have_text("18 of 18")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(media="print", color_scheme="dark")
    page.set_viewport_size({"width": PAPER_PX, "height": 1000})
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert dark != page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER_PX
    shown = page.evaluate("""[...document.querySelectorAll('.figure .main-svg')].filter(e => e.clientWidth)
        .map(e => [e.getBoundingClientRect().right, e.clientHeight])""")
    assert shown and all(right <= PAPER_PX and height <= 900 for right, height in shown)
    text = f"getComputedStyle(document.querySelector('#{figure} .xtick text')).fill"
    assert page.evaluate(text) == "rgb(28, 36, 48)"  # the light page's
    cut = "e => e.clientHeight && e.scrollHeight > e.clientHeight + 1"
    scrolling = ".scroll, .tabulator, .tabulator-print-table"
    assert page.evaluate(f"[...document.querySelectorAll('{scrolling}')].filter({cut}).map(e => e.innerText)") == []
    if kind != "report":
        sections = "[...document.querySelectorAll('.tab')].filter(e => e.clientHeight).map(e => e.id)"
        assert page.evaluate(sections) == [f"tab-{kind}"]
        assert page.locator(":is(header, nav, #selection, .controls):visible").count() == 0
    if kind == "rungs":
        lines = page.locator("#decisions-section .tabulator-print-table tbody tr")
        assert lines.count() == 18 and lines.first.is_visible() and page.locator("#decisions").is_hidden()
        assert "reason" in lines.locator("xpath=../../thead").first.inner_text()
    page.emulate_media(media="screen", color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(f"{text} === 'rgb(228, 232, 239)'")
    assert len(page.pdf(format="A4")) > 20_000


def test_signing_in_shows_what_acts_and_leaves_no_secret_in_the_address(page, acting):
    page.goto(acting.url)
    expect(page.locator("#start")).to_be_hidden()
    page.click("#signin")
    page.fill("input[name=token]", "not the token at all")
    page.click("button")
    expect(page.get_by_role("alert")).to_have_text("That is not the token.")
    signed_in(page, acting)
    expect(page.locator("#start")).to_be_visible()
    expect(page.locator("#signin")).to_be_hidden()
    assert page.evaluate("document.cookie") == ""  # no script reads the session
    page.click("#signout")
    expect(page.locator("#signin")).to_be_visible()
    for gone in ("#start", "#signout"):
        expect(page.locator(gone)).to_be_hidden()


def test_a_page_elsewhere_cannot_act_nor_a_program_that_got_the_cookie(page, acting, tmp_path):
    signed_in(page, acting)
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


def test_a_request_is_sent_once_while_it_is_checked(page, acting):
    ended(acting)
    sent = []

    def slow(route):
        sent.append(route.request.post_data)
        time.sleep(0.3)
        route.fulfill(status=409, content_type="application/json", body=json.dumps({"error": "not now"}))

    page.route("**/resume", slow)
    signed_in(page, acting, "#demo")
    page.fill("#more-samples", "12")
    page.evaluate("() => { for (let i = 0; i < 3; i++) document.getElementById('control').requestSubmit(); }")
    expect(page.locator("#control-status")).to_have_text("not now")
    assert len(sent) == 1
    page.click("#resume-button")
    expect(page.locator("#control")).to_have_attribute("aria-busy", "false")
    page.wait_for_timeout(500)
    assert len(sent) == 2
