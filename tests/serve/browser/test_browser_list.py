"""The list of experiments in chromium, and what users do with an experiment as a whole."""

import re
import time
from types import SimpleNamespace

import pytest
from browsing import DRAWN, column, expect, heads, put_apart, rows, saved, signed_in, sort, tab, write_experiment

from tests.serve.conftest import ended
from tuner.record.notes import Notes, read_notes

pytestmark = pytest.mark.browser


def noted(service, name, tags=(), **options):
    folder = ended(service, name, **options)
    (folder / "notes.json").write_text(Notes(tuple(tags), f"about {name}").text())
    return folder


def names(page):
    return rows(page, "experiments").locator("a").all_text_contents()


def damage(folder):
    (folder / "experiment.json").write_text("{")
    (folder / ".experiment.json.copy").unlink()


def test_the_list_is_filtered_sorted_and_keeps_both(page, viewer):
    noted(viewer, "a", ["baseline", "best/1"])
    noted(viewer, "b", ["baseline-2"], max_epochs=9)
    noted(viewer, "c", searcher="grid")
    damage(noted(viewer, "damaged", ["baseline"]))
    page.goto(viewer.url)
    expect(rows(page, "experiments")).to_have_count(4)
    cases = {
        "tag:baseline": ["a", "damaged"],
        "tag~base -state:unreadable best<0.6": ["a", "b"],
        "searcher:grid": ["c"],
        'notes~"about b"': ["b"],
        'tag:""': ["c"],
    }
    for text, found in cases.items():
        page.fill("#experiments-filter", text)
        expect(rows(page, "experiments")).to_have_count(len(found))
        assert sorted(names(page)) == found, text
    page.fill("#experiments-filter", "state:finished")
    sort(page, "experiments", "name")
    assert names(page) == ["a", "b", "c"]
    page.get_by_role("link", name="b", exact=True).click()
    expect(page.locator("#name")).to_have_text("b")
    expect(page.locator("#tags")).to_have_text("Tags: baseline-2")
    expect(page.locator("#manage")).to_be_hidden()  # not signed in
    page.go_back()
    expect(rows(page, "experiments")).to_have_count(3)
    assert page.input_value("#experiments-filter") == "state:finished" and names(page) == ["a", "b", "c"]


def test_the_list_says_how_far_searches_are_in_columns_that_come_when_they_are_needed(page, viewer):
    ended(viewer, "done")
    page.goto(viewer.url)
    expect(rows(page, "experiments")).to_have_count(1)
    progress = ("running", "paused", "time left")
    assert not set(progress) & set(heads(page, "experiments"))
    journal = write_experiment(viewer.results, "going")
    for trial in ("00006", "00007"):
        journal.write("trial_started", trial, config={"x": 1}, resources={"CPU": 1}, node="n")
    journal.write("trial_ended", "00007", status="paused", reason="")
    put_apart(viewer.results, time.time() - 60, "going", journal)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # as a user who comes back to the window
    expect(rows(page, "experiments")).to_have_count(2)
    assert set(progress) < set(heads(page, "experiments"))
    found = {head: column(page, "experiments", head) for head in ("name", "trials", *progress)}
    assert found == {"name": ["going", "done"], "trials": ["6 of 9", "1 of 10"], "running": ["1", ""]} | {
        "paused": ["1", ""],
        "time left": ["about 23 s", ""],  # 6 trials ended in the 46 s of the journal
    }
    page.fill("#experiments-filter", "running>0 trials<9 time_left<60")
    expect(page.locator("#experiments-count")).to_have_text("1 of 2")
    journal.write("trial_ended", "00006", status="completed", reason="")
    expect(rows(page, "experiments")).to_have_count(0)  # by the list's own update
    page.fill("#experiments-filter", "")
    expect(rows(page, "experiments").first).to_contain_text("7 of 9")
    journal.close()


def test_the_list_is_grouped_by_space_and_groups_are_closed_by_keys(page, viewer):
    for name, space in (("a", "quadratic"), ("b", "my/space.py"), ("c", "quadratic")):
        ended(viewer, name, space=space)
    page.goto(viewer.url)
    expect(rows(page, "experiments")).to_have_count(3)
    page.check("#group-spaces")
    groups = page.locator("#experiments .tabulator-group button")
    expect(groups).to_have_text(["quadratic (2)", "my/space.py (1)"])
    assert names(page) == ["c", "a", "b"]
    groups.first.focus()
    for is_open, count in (("false", 1), ("true", 3), ("false", 1)):
        page.keyboard.press("Enter")
        expect(groups.first).to_have_attribute("aria-expanded", is_open)
        expect(rows(page, "experiments").and_(page.locator(":visible"))).to_have_count(count)
        expect(groups.first).to_be_focused()
    ended(viewer, "d", space="my/space.py")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(groups).to_have_text(["my/space.py (2)", "quadratic (2)"])
    page.fill("#experiments-filter", "space:quadratic")
    expect(groups).to_have_text(["quadratic (2)"])
    page.fill("#experiments-filter", "")
    page.get_by_role("link", name="d", exact=True).click()
    expect(page.locator("#name")).to_have_text("d")
    page.go_back()
    expect(groups).to_have_count(2)
    page.uncheck("#group-spaces")
    expect(groups).to_have_count(0)
    expect(rows(page, "experiments")).to_have_count(4)


def test_all_ticked_experiments_are_tagged_archived_and_shown_again_and_refused_ones_are_named(page, acting):
    folders = {name: noted(acting, name, tags) for name, tags in (("a", ["old"]), ("b", []), ("c", []))}
    page.goto(acting.url)
    page.get_by_label("compare a", exact=True).check()
    expect(page.locator("#bulk")).to_be_hidden()  # not signed in
    signed_in(page, acting)
    expect(rows(page, "experiments")).to_have_count(3)
    expect(page.locator("#bulk")).to_be_hidden()  # nothing is ticked
    for name in "ab":
        page.get_by_label(f"compare {name}", exact=True).check()
    status = page.locator("#bulk-status")
    page.click("#bulk-add")
    expect(status).to_have_text("type a tag first")
    page.fill("#bulk-tag", "night")
    page.press("#bulk-tag", "Enter")
    expect(status).to_have_text("saved 2 experiments")
    assert {name: read_notes(folder).tags for name, folder in folders.items()} == {
        "a": ("old", "night"),
        "b": ("night",),
        "c": (),
    }
    assert read_notes(folders["a"]).notes == "about a"
    page.fill("#bulk-tag", "old")
    page.click("#bulk-remove")
    expect(status).to_have_text("saved 2 experiments")
    expect(rows(page, "experiments").filter(has_text="night")).to_have_count(2)
    assert read_notes(folders["a"]).tags == ("night",)
    page.fill("#bulk-tag", "two=words")
    page.click("#bulk-add")
    expect(status).to_contain_text("a: tag 'two=words': must be 1 to 40 letters")
    expect(status).to_contain_text("b: tag 'two=words'")
    (folders["b"] / "notes.json").write_text("{")  # which cannot be changed any more
    page.click("#bulk-archive")
    expect(status).to_have_text(re.compile("^b: .*notes.json cannot be read"))
    assert status.get_attribute("class") == "failed"
    expect(rows(page, "experiments")).to_have_count(2)
    page.get_by_label("show 1 archived").check()
    expect(page.get_by_label("compare a", exact=True)).not_to_be_checked()  # it was out of sight
    page.get_by_label("compare a", exact=True).check()
    page.get_by_label("compare b", exact=True).uncheck()
    page.click("#bulk-show")
    expect(status).to_have_text("saved 1 experiment")
    expect(page.locator("#archived-choice")).to_be_hidden()
    assert not read_notes(folders["a"]).archived


def test_tags_and_notes_are_saved_and_an_update_keeps_what_is_typed(page, acting):
    folder = ended(acting)
    signed_in(page, acting, "#demo//files")
    page.fill("#own-tags", "baseline, wide")
    page.fill("#own-notes", "first line\n<b>second</b>")
    page.click("#notes-form button")
    expect(page.locator("#notes-status")).to_have_text("saved")
    tab(page, "Overview")
    expect(page.locator("#tags")).to_have_text("Tags: baseline, wide")
    expect(page.locator("#notes")).to_have_text("first line\n<b>second</b>")
    tab(page, "Files")
    assert read_notes(folder) == Notes(("baseline", "wide"), "first line\n<b>second</b>")
    page.fill("#own-tags", "two=words")
    page.click("#notes-form button")
    expect(page.locator("#notes-status")).to_contain_text("tag 'two=words': must be 1 to 40 letters")
    page.evaluate("import('/experiment.js').then(({ shown }) => shown.now.load({ fresh: false }))")  # an update
    assert page.input_value("#own-tags") == "two=words"
    (folder / "notes.json").write_text("{")
    page.reload()
    expect(page.locator("#notes-error")).to_contain_text("notes.json cannot be read")


def test_notes_of_two_tabs_are_not_lost(page, acting):
    def update(there):
        there.evaluate("import('/experiment.js').then(({ shown }) => shown.now.load({ fresh: false }))")

    folder = ended(acting)
    signed_in(page, acting, "#demo//files")
    other = page.context.new_page()
    other.goto(f"{acting.url}#demo//files")
    status = other.locator("#notes-status")
    expect(other.locator("#own-notes")).to_have_value("")
    other.fill("#own-notes", "second")
    page.fill("#own-tags", "one")
    page.fill("#own-notes", "first")
    page.click("#notes-form button")
    expect(page.locator("#notes-status")).to_have_text("saved")
    update(other)  # it does not overwrite what is typed
    expect(other.locator("#notes")).to_have_text("first")
    assert [other.input_value(box) for box in ("#own-notes", "#own-tags")] == ["second", ""]
    other.reload()
    other.fill("#own-notes", "third")
    page.fill("#own-notes", "fourth")
    page.press("#own-tags", "Enter")
    expect(page.locator("#notes")).to_have_text("fourth")
    other.click("#notes-form button")
    expect(status).to_have_text(
        "somebody has saved other notes meanwhile: tags one; notes: fourth. Yours are still in the form. "
        "Save again to replace theirs"
    )
    assert other.input_value("#own-notes") == "third" and read_notes(folder).notes == "fourth"
    other.click("#notes-form button")
    expect(status).to_have_text("saved")
    assert read_notes(folder) == Notes(("one",), "third")
    update(page)  # where nothing is typed, it shows what was saved
    expect(page.locator("#own-notes")).to_have_value("third")
    other.close()


def test_after_a_restart_the_page_says_that_the_user_is_signed_out_and_keeps_what_is_typed(page, acting):
    folder = ended(acting)
    signed_in(page, acting, "#demo//files")
    page.fill("#own-notes", "an hour of work")
    acting.app.state.keys._sessions.clear()  # as a new service has none
    page.click("#notes-form button")
    status = page.locator("#notes-status")
    expect(status).to_contain_text("you are signed out: the service was restarted, or 12 hours have passed.")
    expect(status).to_contain_text("Sign in with the link that the service prints when it starts")
    expect(page.locator("#signout")).to_be_hidden()
    expect(page.locator("#signin")).to_be_visible()
    page.evaluate("import('/experiment.js').then(({ shown }) => shown.now.load({ fresh: false }))")  # an update
    page.wait_for_timeout(500)
    expect(page.locator("#own-notes")).to_be_visible()
    assert page.input_value("#own-notes") == "an hour of work" and read_notes(folder).notes == ""
    other = page.context.new_page()
    signed_in(other, SimpleNamespace(url=acting.url, link=f"{acting.url}signin?code={acting.app.state.keys.code}"))
    page.click("#notes-form button")
    expect(status).to_have_text("saved")
    assert read_notes(folder).notes == "an hour of work"
    expect(page.locator("#signout")).to_be_visible()
    other.close()


def test_an_archived_experiment_is_hidden_until_it_is_asked_for(page, acting):
    noted(acting, "old")
    noted(acting, "new")
    signed_in(page, acting, "#old//files")
    page.click("#archive")
    expect(page.locator("#archive")).to_have_text("Show in the list again")
    tab(page, "Overview")
    expect(page.locator("#archived")).to_be_visible()
    page.click("header a")
    expect(rows(page, "experiments")).to_have_count(1)
    page.get_by_label("show 1 archived").check()
    expect(rows(page, "experiments")).to_have_count(2)
    page.click("#experiments >> text=old")
    tab(page, "Files")
    page.click("#archive")
    expect(page.locator("#archive")).to_have_text("Archive")
    tab(page, "Overview")
    expect(page.locator("#archived")).to_be_hidden()
    page.click("header a")
    expect(page.locator("#archived-choice")).to_be_hidden()
    expect(rows(page, "experiments")).to_have_count(2)


def test_a_deletion_says_what_is_lost_and_wants_the_name(page, acting):
    ended(acting)
    taken = ended(acting, "taken")
    signed_in(page, acting, "#demo//files")
    page.click("#delete")
    expect(page.locator("#delete-lost")).to_contain_text("1 trial, 2 epochs")
    expect(page.locator("#delete-for-ever")).to_be_disabled()
    page.fill("#typed-name", "dem")
    page.press("#typed-name", "Enter")
    assert (acting.results / "demo" / "journal.jsonl").exists()
    page.click("#delete-cancel")
    expect(page.locator("#delete-dialog")).to_be_hidden()
    page.click("#delete")
    page.fill("#typed-name", "demo")
    page.click("#delete-for-ever")
    expect(page.locator("#list-status")).to_have_text("demo is deleted.")
    first, _, *others = (taken / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (taken / "journal.jsonl").write_bytes(first + b"{\n" + b"".join(others))  # unreadable, but proved
    proof = (taken / "experiment.json").read_bytes()
    damage(taken)  # now nothing does
    for proves in (False, True):
        if proves:
            (taken / "experiment.json").write_bytes(proof)
        page.goto(f"{acting.url}#taken")
        page.reload()
        expect(page.locator("#problem")).to_contain_text("damaged")
        page.click("#delete-damaged")
        expect(page.locator("#delete-lost")).to_contain_text("checkpoints and best model. It")
        page.fill("#typed-name", "taken")
        page.press("#typed-name", "Enter")
        if not proves:
            expect(page.locator("#delete-status")).to_contain_text("is not an experiment of tuner")
            assert (taken / "best").is_dir()
    expect(page.locator("#no-experiments")).to_be_visible()
    expect(page.locator("#problem")).to_be_hidden()
    assert not list(acting.results.iterdir())
    page.goto(f"{acting.url}#nothing")
    expect(page.locator("#problem")).to_contain_text("no experiment of that name")
    expect(page.locator("#damaged-offer")).to_be_hidden()


def test_a_finished_search_is_saved_and_extended_and_a_running_one_not_deleted(page, acting):
    ended(acting)
    ended(acting, "fixed", scheduler="hyperband")
    ended(acting, "own", space="my/space.py")
    write_experiment(acting.results, "running").close()
    page.route("**/api/openapi.json", lambda route: None)  # the start form, but not the list, waits for this answer
    signed_in(page, acting)
    expect(page.locator("#list h1")).to_be_visible()
    expect(page.locator("#start")).to_be_hidden()
    page.goto(f"{acting.url}#running//files")
    expect(page.locator("#delete")).to_be_disabled()
    page.goto(f"{acting.url}#demo//files")
    expect(page.locator("#best-files li")).to_have_count(3)
    name, path = saved(page, "#best-files >> text=model.pt")
    assert name == "demo-model.pt" and path.read_bytes() == b"m" * 700_000
    tab(page, "Overview")
    expect(page.locator("#resume-button")).to_have_text("Extend")
    placeholders = [page.get_attribute(field, "placeholder") for field in ("#more-samples", "#more-epochs")]
    assert placeholders == ["10 now", "27 now"]
    page.click("#resume-button")
    expect(page.locator("#control-status")).to_contain_text("give more trials or more epochs per trial")
    page.fill("#more-samples", "12")
    page.fill("#more-epochs", "54")
    page.click("#resume-button")
    expect(page.locator("#summary")).to_contain_text("queued")
    assert acting.searches.get("demo").arguments[2:] == ["--num-samples=12", "--max-epochs=54"]
    page.goto(f"{acting.url}#fixed")
    expect(page.locator("#not-extended")).to_contain_text("built for 27 epochs")
    expect(page.locator("#more-epochs")).to_be_disabled()
    page.goto(f"{acting.url}#own")
    expect(page.locator("#not-extended")).to_contain_text("the service resumes only searches over")
    expect(page.locator("#control")).to_be_hidden()


def test_the_form_shows_every_default_and_the_page_what_a_search_waits_for(page, acting):
    signed_in(page, acting)
    expect(page.locator("main#list > .about")).to_contain_text("A space is a Python file")
    page.click("#start > summary")
    page.click("#start details > summary")
    for space, epochs in (("quadratic", "27"), ("cifar", "10")):
        page.select_option("#start-space", space)
        assert page.get_attribute("#start-max_epochs", "placeholder") == epochs
    assert page.locator("#start-scheduler option").first.text_content() == "auto (default)"
    empty = """inputs => inputs.filter(e => e.type != 'checkbox' && !(e.placeholder || e.options?.[0].text))
        .map(e => e.id)"""
    assert page.eval_on_selector_all("#start-form input, #start-form select", empty) == []
    page.select_option("#start-space", "quadratic")
    page.fill("#start-name", "mine")
    page.fill("#start-num_samples", "0")
    page.click("#start-form p button")
    expect(page.locator("#start-status")).to_contain_text("--num-samples 0: must be 1 or more")
    page.fill("#start-num_samples", "3")
    page.click("#start-form p button")
    page.wait_for_url(f"{acting.url}#mine")
    expect(page.locator("#name")).to_have_text("mine")
    expect(page.locator("#message")).to_contain_text("queued: waiting for free resources, ")
    before = page.text_content("#message")
    expect(page.locator("#message")).not_to_have_text(before)  # the seconds go on
    acting.searches.step()
    expect(page.locator("#message")).to_contain_text("starting: waiting for the search to load its space and data, ")
    acting.begin("mine").close()
    expect(page.locator("#message")).to_contain_text("running: waiting for a worker, ")
    page.click("#stop")
    expect(page.locator("#summary")).to_contain_text("· stopping ·")
    acting.end_jobs("ended", 2, "tuner: error: no data")
    expect(page.locator("#message")).to_have_text("no data")
    expect(page.locator("#extend")).to_be_visible()


def test_a_phone_reads_starts_and_keeps_the_list_in_order(page, acting):
    folder = noted(acting, "demo-" + "x" * 90, ["a-long-tag-of-forty-characters-" + "y" * 9])
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 400, "height": 800})
    signed_in(page, acting)
    page.click("#start > summary")
    wide = """[...document.querySelectorAll('main:not([hidden]) :is(input, select, button, h1, p)')]
      .filter((each) => each.checkVisibility() && each.getBoundingClientRect().right > 400)
      .filter((each) => !each.closest('.tabulator, .wide, #selection')).map((each) => each.outerHTML)"""
    write_experiment(acting.results, "running").close()
    own, figures = f"#{folder.name}", {"#running//rungs": "rung_values", "#running//parameters": "slices"}
    figures |= {own: "best", f"{own}//curves": "curves", f"{own}//resources": "timeline"}
    for where in ("", *figures, f"{own}//trials", f"{own}//rungs", f"{own}//files"):
        page.goto(acting.url + where)
        if where in figures:
            page.wait_for_function(DRAWN, arg=figures[where])
        elif not where or where.endswith("trials"):
            expect(rows(page, "trials" if where else "experiments")).to_have_count(1 if where else 2)
        expect(page.locator("#list h1" if not where else "#name")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert page.evaluate(wide) == []
    page.click("#delete")
    expect(page.locator("#delete-dialog")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
