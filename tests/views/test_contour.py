"""The contour: what is smoothed, where nothing is drawn, and which parameters have one."""

import math

import numpy as np
import plotly.graph_objects as go
import pytest
from test_figures import record, trial

from tuner.errors import RequestError
from tuner.views.figures.contour import REACH, draw_contour, smoothed_grid


def test_at_a_lone_trial_the_value_is_its_own_and_far_away_there_is_none():
    ticks = [float(at) for at in np.linspace(0, 1, 11)]
    grid = smoothed_grid([0.0, 1.0], [0.0, 1.0], [3.0, 5.0], ticks, ticks)
    assert grid[0][0] == pytest.approx(3.0) and grid[10][10] == pytest.approx(5.0)
    assert grid[0][10] is None and grid[5][5] is None
    near = [(i, j) for i in range(11) for j in range(11) if grid[i][j] is not None]
    assert all(min(math.hypot(i, j), math.hypot(10 - i, 10 - j)) / 10 <= REACH + 1e-9 for i, j in near)
    same = smoothed_grid([0.0, 0.0], [0.0, 0.0], [1.0, 2.0], [0.0, 1.0], [0.0, 1.0])
    assert same[0][0] == pytest.approx(1.5)  # two trials at one place are their mean


def test_smoothing_does_not_depend_on_units():
    ticks = [float(at) for at in np.linspace(0, 1, 5)]
    stream = np.random.default_rng(0)
    x, y, values = (list(stream.random(9)) for _ in range(3))
    once = smoothed_grid(x, y, values, ticks, ticks)
    scaled = smoothed_grid([1e6 * at for at in x], y, values, [1e6 * at for at in ticks], ticks)
    assert [c is None for row in once for c in row] == [c is None for row in scaled for c in row]
    known = [(a, b) for p, q in zip(once, scaled, strict=True) for a, b in zip(p, q, strict=True) if a is not None]
    assert known and all(a == pytest.approx(b) for a, b in known)


def test_trials_without_a_finite_value_are_left_out_and_the_figure_is_plotlys():
    trials = [trial(n, [float(n)], a=n, b=-n, same=1) for n in range(5)]
    figure = draw_contour(record(*trials, trial(5, [math.nan], a=9, b=9, same=1)), "a", "b")
    go.Figure(figure)
    surface, dots = figure["data"]
    assert dots["x"] == dots["marker"]["color"] == [0, 1, 2, 3, 4]
    assert len(surface["z"]) == len(surface["y"]) and len(surface["z"][0]) == len(surface["x"])


def test_a_name_is_mended_and_one_value_for_all_is_no_axis():
    trials = [trial(n, [float(n)], width=n, depth=n, same=1) for n in range(3)]
    with pytest.raises(RequestError, match="no parameter 'widht'.*did you mean 'width'"):
        draw_contour(record(*trials), "widht", "depth")
    with pytest.raises(RequestError, match="no parameter 'same'"):
        draw_contour(record(*trials), "width", "same")
