"""An experiment's page in chromium: its tabs and their addresses, its overview, its progress, and its end."""

import shutil
import time

import pytest
from browsing import DRAWN, add_trials, drawn, expect, put_apart, row, rows, tab

pytestmark = pytest.mark.browser
TABS = {"Overview": "", "Trials": "trials", "Curves": "curves", "Rungs and decisions": "rungs"}
TABS |= {"Parameters": "parameters", "Resources": "resources", "Files": "files"}
OPEN = "[...document.querySelectorAll('.tab')].filter((tab) => tab.checkVisibility()).map(({ id }) => id)"
SAYS = "getComputedStyle(document.querySelector('.tab:not([hidden])'), '::after').content"


def at(name):
    return f"tab-{name or 'overview'}"


def test_each_tab_has_an_address_and_back_and_forward_lead_through_them(page, viewer, demo):
    page.goto(f"{viewer.url}#demo")
    addresses = {title: f"{viewer.url}#demo{f'//{name}' if name else ''}" for title, name in TABS.items()}
    expect(page.locator("#tabs a")).to_have_text(list(TABS))
    for title, name in TABS.items():
        tab(page, title)
        page.wait_for_url(addresses[title])
        expect(page.locator("#tabs a[aria-current=page]")).to_have_text(title)
        assert page.evaluate(OPEN) == [at(name)] and page.evaluate(SAYS) == "none"
    for title in reversed([*TABS][:-1]):
        page.go_back()
        expect(page.locator("#tabs a[aria-current=page]")).to_have_text(title)
        assert page.evaluate(OPEN) == [at(TABS[title])] and page.url == addresses[title]
    page.go_forward()
    expect(page.locator("#tabs a[aria-current=page]")).to_have_text("Trials")
    page.reload()
    expect(rows(page, "trials")).to_have_count(6)
    assert page.evaluate(OPEN) == ["tab-trials"]
    page.locator("#tabs a", has_text="Trials").focus()  # by the keyboard alone
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url(addresses["Curves"])


def test_a_sections_address_opens_its_tab_and_puts_the_focus_there(page, viewer, written):
    titles = {"decisions": "Decisions, the closest first", "slices": "Slice plots", "best": "Its curve"}
    titles |= {"timeline": "Timeline", "nowhere": "", "usage": "", "trials": ""}
    tabs = dict(zip(titles, ("rungs", "parameters", "", "resources", "", "resources", "trials"), strict=True))
    for place, title in titles.items():
        page.goto("about:blank")
        page.goto(f"{viewer.url}#demo//{place}")
        expect(page.locator("#name")).to_have_text("demo")
        if title:
            heading = page.locator("#one h2:focus")
            expect(heading).to_have_text(title)
            expect(heading).to_be_in_viewport()
        assert page.evaluate(OPEN) == [at(tabs[place])]
    for place in ("whatif", "importance"):  # a closed section
        page.goto(f"{viewer.url}#demo//{place}")
        expect(page.locator(f"#{place}-section[open] > summary:focus")).to_have_count(1)
    page.goto(f"{viewer.url}#demo//rungs")  # a tab, though a section has this name, too
    expect(page.locator("#rungs-section")).to_be_visible()
    expect(page.locator("#one h2:focus")).to_have_count(0)


def test_a_tab_without_content_says_so_until_it_has_some(page, viewer):
    journal = viewer.begin("demo", num_samples=3)
    for title, name in TABS.items():
        page.goto(f"{viewer.url}#demo//{name}")
        expect(page.locator("#tabs a[aria-current=page]")).to_have_text(title)
        expect(page.locator("#progress-text")).to_have_text("0 of 3 trials have ended")
        assert page.evaluate(SAYS) == ("none" if title in ("Overview", "Files") else '"Nothing to show here."'), title
    tab(page, "Trials")
    add_trials(journal, [0])
    expect(rows(page, "trials")).to_have_count(1)
    assert page.evaluate(SAYS) == "none"
    tab(page, "Curves")
    page.wait_for_function(DRAWN, arg="curves")
    assert page.evaluate(SAYS) == "none"


def test_a_trials_dialog_leaves_the_tab_behind_it_open(page, viewer, demo):
    page.click("#trials >> text=00003")
    dialog = page.locator("#trial")
    expect(page.locator("#trial-name")).to_have_text("Trial 00003: completed")
    assert page.url == f"{viewer.url}#demo/00003/trials" and page.evaluate(OPEN) == ["tab-trials"]
    page.go_back()
    expect(dialog).to_be_hidden()
    page.go_forward()
    expect(dialog).to_be_visible()
    page.reload()
    expect(page.locator("#trial-name")).to_have_text("Trial 00003: completed")
    page.click("#trial-close")
    page.wait_for_url(f"{viewer.url}#demo//trials")
    expect(row(page, "00003")).to_be_visible()
    page.goto(f"{viewer.url}#demo/00001/timeline")  # of a section
    expect(page.locator("#trial-name")).to_have_text("Trial 00001: completed")
    page.keyboard.press("Escape")
    page.wait_for_url(f"{viewer.url}#demo//timeline")
    assert page.evaluate(OPEN) == ["tab-resources"]
    page.goto(f"{viewer.url}#demo/00001")  # as a link in a message has it
    expect(page.locator("#trial-name")).to_have_text("Trial 00001: completed")
    assert page.evaluate(OPEN) == ["tab-overview"]


def test_the_overview_begins_with_the_best_setting_its_metrics_and_its_curve(page, viewer, written):
    page.goto(f"{viewer.url}#demo")
    expect(page.locator("#best-value")).to_have_text("Best setting: loss 1, trial 00000 at epoch 4")
    expect(page.locator("#best-metrics")).to_have_text("")
    config = {"lr": 0.00001234567, "opt": {"name": "sgd", "momentum": 0.9}, "act": None, "sizes": [8, 16]}
    written.write("trial_started", "00006", config=config, resources={"CPU": 1}, node="n")
    written.write("report", "00006", epoch=1, metrics={"loss": 0.123456789, "accuracy": 0.9, "train_s": 1.0, "top5": 1})
    expect(page.locator("#best-value")).to_have_text("Best setting: loss 0.12346, trial 00006 at epoch 1")
    expect(page.locator("#best-metrics")).to_have_text("At that epoch: accuracy 0.9, top5 1.")
    expect(page.locator("#best-setting dt")).to_have_text(["lr", "opt/name", "opt/momentum", "act", "sizes"])
    assert page.locator("#best-setting dd").all_text_contents()[:3] == ["0.000012346", "sgd", "0.9"]
    assert page.locator("#best-setting dd").last.text_content() == "[8,16]"
    page.wait_for_function(DRAWN, arg="best")
    page.wait_for_function("document.getElementById('best').data.some(({ y }) => y.includes(0.123456789))")
    top = "id => document.getElementById(id).getBoundingClientRect().top"
    places = ("best-value", "best-setting", "best-metrics", "best-link", "best", "verdict-ended", "history")
    tops = [page.evaluate(top, each) for each in places]
    assert tops == sorted(tops) and tops[4] < 900  # the curve is on the first screen
    page.click("#best-link")
    expect(page.locator("#trial-name")).to_have_text("Trial 00006: running")
    assert page.url == f"{viewer.url}#demo/00006"


def test_a_running_search_shows_its_progress_and_a_finished_one_does_not(page, viewer, written):
    def states():
        bar = page.locator("#progress")
        return bar.evaluate("bar => [bar.hidden, bar.value, bar.max]"), page.title()

    put_apart(viewer.results, time.time() - 60, journal=written)
    page.goto(f"{viewer.url}#demo")
    text = page.locator("#progress-text")
    # 43 lines are 42 s, in which 6 trials ended.
    expect(text).to_have_text("6 of 9 trials have ended, 8.6 a minute, about 21 s left")
    assert states() == ([False, 6, 9], "6 of 9 demo: tuner")
    expect(page.locator("#live")).to_have_text("live")
    written.write("trial_started", "00006", config={"x": 1}, resources={"CPU": 1}, node="n")
    expect(text).to_contain_text("6 of 9 trials have ended, 1 running, ")
    written.write("trial_ended", "00006", status="paused", reason="")
    expect(text).to_contain_text("6 of 9 trials have ended, 1 paused, ")
    tab(page, "Curves")  # the progress is above all tabs
    expect(text).to_be_in_viewport()
    add_trials(written, [7])
    expect(text).to_contain_text("7 of 9")
    assert states() == ([False, 7, 9], "7 of 9 demo: tuner")
    written.write("experiment_finished", state="finished", reason="")
    expect(text).to_have_text("")
    expect(page.locator("#live")).to_have_text("")
    assert states()[0][0] is True and page.title() == "demo: tuner"
    expect(page.locator("#progress")).to_be_hidden()
    page.reload()
    expect(page.locator("#summary")).to_contain_text("finished")
    page.wait_for_timeout(1000)  # until its stream is open
    assert page.locator("#live").text_content() == "" and page.title() == "demo: tuner"
    page.click("header a")
    expect(page.locator("#list h1")).to_be_visible()
    assert page.title() == "tuner"


def test_a_page_whose_folder_is_removed_says_so_and_asks_no_more(page, viewer, demo):
    add_trials(demo, [6])
    expect(page.locator("#summary")).to_contain_text("7 of 9 trials")  # by its stream
    shutil.rmtree(viewer.results / "demo")
    expect(page.locator("#live")).to_have_text("gone")
    problem = page.locator("#problem")
    expect(problem).to_contain_text("demo is no longer there: its folder was deleted, renamed or moved.")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    drawn(page, "timeline")
    tab(page, "Trials")
    expect(rows(page, "trials")).to_have_count(7)  # its last state
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(10_500)  # a stream, a poll and an update would have asked
    assert asked == []
    expect(problem).to_contain_text("demo is no longer there")
    page.click("header a")
    expect(page.locator("#no-experiments")).to_be_visible()
    expect(problem).to_be_hidden()
    assert [url for url in asked if not url.endswith("/api/experiments")] == []
