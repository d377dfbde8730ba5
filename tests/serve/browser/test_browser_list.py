"""The list of experiments in chromium, and what users do with an experiment as a whole."""

import pytest
from browsing import DRAWN, expect, rows, saved, signed_in, sort, tab, write_experiment

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


def test_a_new_name_is_shown_at_once_and_a_deletion_says_what_is_lost_and_wants_the_name(page, acting):
    ended(acting)
    damage(ended(acting, "taken"))
    signed_in(page, acting, "#demo//files")
    for wrong, says in (("../up", "must be letters, digits"), ("taken", "already exists")):
        page.fill("#new-name", wrong)
        page.click("#rename")
        expect(page.locator("#rename-status")).to_contain_text(says)
    page.fill("#new-name", "better")
    page.press("#new-name", "Enter")
    expect(page.locator("#name")).to_have_text("better")
    assert page.url == f"{acting.url}#better"
    tab(page, "Files")
    page.click("#delete")
    expect(page.locator("#delete-lost")).to_contain_text("1 trial with 2 epochs")
    expect(page.locator("#delete-lost")).to_contain_text("the best model and 1 checkpoint among them")
    expect(page.locator("#delete-for-ever")).to_be_disabled()
    page.fill("#typed-name", "bette")
    page.press("#typed-name", "Enter")
    assert (acting.results / "better" / "journal.jsonl").exists()
    page.click("#delete-cancel")
    expect(page.locator("#delete-dialog")).to_be_hidden()
    page.click("#delete")
    page.fill("#typed-name", "better")
    page.click("#delete-for-ever")
    expect(page.locator("#list-status")).to_have_text("better is deleted.")
    page.click("#experiments >> text=taken")  # which cannot be read
    expect(page.locator("#problem")).to_contain_text("damaged")
    page.click("#delete-damaged")
    expect(page.locator("#delete-lost")).to_contain_text("no trials")
    page.fill("#typed-name", "taken")
    page.press("#typed-name", "Enter")
    expect(page.locator("#no-experiments")).to_be_visible()
    expect(page.locator("#problem")).to_be_hidden()
    assert not list(acting.results.iterdir())
    page.goto(f"{acting.url}#nothing")
    expect(page.locator("#problem")).to_contain_text("no experiment of that name")
    expect(page.locator("#damaged")).to_be_hidden()


def test_a_finished_search_is_saved_and_extended_and_a_running_one_not_renamed(page, acting):
    ended(acting)
    ended(acting, "fixed", scheduler="hyperband")
    ended(acting, "own", space="my/space.py")
    write_experiment(acting.results, "running").close()
    page.route("**/api/openapi.json", lambda route: None)  # the start form, but not the list, waits for this answer
    signed_in(page, acting)
    expect(page.locator("#list h1")).to_be_visible()
    expect(page.locator("#start")).to_be_hidden()
    page.goto(f"{acting.url}#running//files")
    for button in ("#rename", "#delete"):
        expect(page.locator(button)).to_be_disabled()
    page.goto(f"{acting.url}#demo//files")
    expect(page.locator("#best-files li")).to_have_count(3)
    name, path = saved(page, "#best-files >> text=model.pt")
    assert name == "demo-model.pt" and path.read_bytes() == b"m" * 700_000
    tab(page, "Overview")
    expect(page.locator("#resume-button")).to_have_text("Extend")
    placeholders = [page.get_attribute(field, "placeholder") for field in ("#more-samples", "#more-epochs")]
    assert placeholders == ["10", "27"]
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
    wide = """[...document.querySelectorAll('main:not([hidden]) :is(input, select, button, h1, p)')].filter((each) =>
      each.checkVisibility() && each.getBoundingClientRect().right > 400 && !each.closest('.tabulator, .wide, #selection'))
      .map((each) => each.outerHTML)"""
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
