"""Figures in chromium that are drawn again, for paper and by the user: what they draw lies where their axes say."""

import pytest
from browsing import DRAWN, drawn, expect, put_apart, tab

from tests.serve.conftest import begin, train

pytestmark = pytest.mark.browser
# Of each point and bar of a figure: where it is drawn, where the axes say that its data lie, and whether that is
# inside the axes. Ticks, too: an axis that was not drawn again would agree with itself alone.
PLACES = r"""name => { const node = document.getElementById(name), layout = node._fullLayout, found = [];
  const axis = (trace, side) => layout[`${side}axis${(trace[`${side}axis`] ?? side).slice(1)}`];
  const at = (part) => part.getAttribute("transform").match(/[-\d.e]+(?=[,)])/g).slice(0, 2).map(Number);
  const add = (kind, drawn, said, x, y) => found.push([kind, drawn, said,
    said.every((each, i) => each === null || (each >= -1 && each <= [x, y][i]._length + 1))]);
  for (const group of node.querySelectorAll(".scatterlayer .trace")) {
    const trace = group.__data__[0].trace, [x, y] = [axis(trace, "x"), axis(trace, "y")];
    for (const point of group.querySelectorAll("path.point")) { const { i } = point.__data__;
      add("point", at(point), [x.d2p(trace.x[i]), y.d2p(trace.y[i])], x, y); }
  }
  for (const group of node.querySelectorAll(".barlayer .trace")) {
    const trace = group.__data__[0].trace, [x, y] = [axis(trace, "x"), axis(trace, "y")];
    for (const bar of group.querySelectorAll(".point > path")) {
      const { i } = bar.parentNode.__data__, box = bar.getBBox();
      const [from, to] = [trace.base[i], trace.base[i] + trace.x[i]].map((each) => x.d2p(each));
      add("bar", [box.x, box.x + box.width], [from, to], x, x); }
  }
  for (const tick of node.querySelectorAll(".xaxislayer-above .xtick text")) {
    const x = layout.xaxis; add("tick", [at(tick)[0] - x._offset, null], [x.d2p(tick.__data__.x), null], x, x);
  }
  return found; }"""
ON_PAPER = "Math.abs(document.getElementById('{}')._fullLayout.width - 690) < 1"
FIGURES = {"best": "points", "history": "points", "curves": "points", "rung_values": "points", "contour": "points"}
FIGURES |= {"timeline": "bars", "slices": ""}  # WebGL draws the slices, but not their ticks


@pytest.fixture
def search(viewer):
    journal = begin(viewer.results, "demo", {"space": {"params": {}}, "data": {}}, max_epochs=4, reduction_factor=2)
    for number in range(8):
        is_pruned, config = number % 3 == 2, {"lr": 0.5 / 3**number, "width": 8 + 40 * (number % 5), "z": number**2}
        decision = {"epoch": 1, "rung": 1, "bracket": 0, "cutoff": 5.0, "recorded": number, "value": 4.0 + number}
        decision |= {"action": "stop" if is_pruned else "continue", "reason": "worse" if is_pruned else "better"}
        losses, end = [5.0 + number - epoch for epoch in range(1, 2 if is_pruned else 5)], {}
        if is_pruned:
            end = {"status": "pruned", "reason": "worse"}
        train(journal, f"{number:05}", config, losses, decision, **end)
    journal.write("experiment_finished", state="finished", reason="")
    journal.close()
    put_apart(viewer.results)
    return viewer


def check(page, figure):
    """What a figure draws lies where its axes say, and inside them; gives the number of points and bars."""
    places = page.evaluate(PLACES, figure)
    wrong = [each for each in places if not each[3] or each[1] != pytest.approx(each[2], abs=1.5)]
    assert places and wrong == [], figure
    return sum(kind != "tick" for kind, *_ in places)


def test_every_figure_on_paper_and_on_the_screen_after_it_draws_trials_where_its_axes_say(page, search):
    page.emulate_media(color_scheme="dark")
    page.goto(f"{search.url}#demo")
    for figure, kind in FIGURES.items():
        if figure == "contour":
            tab(page, "Parameters")
            page.click("#contour-section > summary")
        drawn(page, figure)
        before = check(page, figure)
        assert (before > 0) == bool(kind)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.wait_for_function(ON_PAPER.format(figure))
        assert check(page, figure) == before
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.wait_for_function(f"!({ON_PAPER.format(figure)})")
        assert check(page, figure) == before
    expect(page.locator("#problem")).to_be_hidden()


def test_the_timeline_ends_where_the_search_ends_also_on_paper(page, search):
    page.goto(f"{search.url}#demo")
    drawn(page, "timeline")
    axis = """() => { const { data, _fullLayout: { xaxis } } = document.getElementById("timeline");
      const ends = data.flatMap(({ base, x }) => base.map((from, i) => from + x[i]));
      return [Math.max(...ends), xaxis._rl[1], xaxis.r2p(Math.max(...ends)) / xaxis._length]; }"""
    for event in ("", "beforeprint", "afterprint", "beforeprint"):
        page.evaluate("event => event && dispatchEvent(new Event(event))", event)
        end, limit, share = page.evaluate(axis)
        assert end <= limit <= 1.1 * end and 0.9 <= share <= 1


def test_a_contour_that_is_drawn_again_has_the_right_axes_and_all_its_trials_in_them(page, search):
    state = """() => { const { data, layout } = document.getElementById("contour"), last = data.at(-1);
      return [layout.xaxis.title.text, layout.yaxis.title.text, last.customdata.length, data[0].type]; }"""
    color = "getComputedStyle(document.querySelector('#{} .xtick text')).fill === 'rgb(228, 232, 239)'"
    page.goto(f"{search.url}#demo")
    drawn(page, "curves")
    page.goto(f"{search.url}#demo//contour")
    page.wait_for_function(DRAWN, arg="contour")
    assert page.evaluate(state)[:2] == ["lr", "width"]
    for box, value, axes in (("x", "z", ["z", "width"]), ("y", "lr", ["z", "lr"]), ("x", "width", ["width", "lr"])):
        page.select_option(f"#contour-{box}", value)
        page.wait_for_function(f"String(({state})().slice(0, 2)) === '{','.join(axes)}'")
        assert page.evaluate(state) == [*axes, 8, "contour"]
        assert check(page, "contour") == 8
    page.emulate_media(color_scheme="dark")  # draws all figures again, in other colours
    page.wait_for_function(color.format("contour"))
    assert check(page, "contour") == 8
    tab(page, "Curves")  # those of other tabs when they are shown
    page.wait_for_function(color.format("curves"))
    tab(page, "Parameters")
    with page.expect_response("**/contour?*values=last*"):
        page.select_option("#values", "last")
    page.wait_for_timeout(500)
    assert page.evaluate(state) == ["width", "lr", 8, "contour"] and check(page, "contour") == 8
    expect(page.locator("#problem")).to_be_hidden()
