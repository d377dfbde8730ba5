"""Importance: what matters is found, with how sure one may be, and what cannot be told is refused."""

import math

import numpy as np
import plotly.graph_objects as go
import pytest
from test_figures import record, trial

from tuner.errors import RequestError
from tuner.views.figures.importance import Importance, draw_importance, importance_of

pytest.importorskip("sklearn")


def test_what_the_value_follows_comes_first_and_noise_is_near_zero():
    stream = np.random.default_rng(0)
    settings = [{"noise": float(a), "lr": float(b)} for a, b in stream.random((60, 2))]
    importance = importance_of(record(*(trial(n, [s["lr"] ** 2], **s) for n, s in enumerate(settings))))
    assert importance.names == ["lr", "noise"] and importance.trials == 60
    assert importance.explained > 0.8 and importance.means[0] > 10 * abs(importance.means[1])
    assert all(deviation >= 0 for deviation in importance.deviations)


def test_values_are_compared_by_rank_so_one_that_exploded_changes_little():
    trials = [trial(n, [float(n)], x=n, y=n % 3) for n in range(20)]
    calm = importance_of(record(*trials))
    wild = importance_of(record(*trials[:-1], trial(19, [1e30], x=19, y=1)))
    assert calm.names == wild.names and calm.means == pytest.approx(wild.means)
    assert importance_of(record(*trials)) == calm  # the same record gives the same figure


@pytest.mark.parametrize(
    ("trials", "said"),
    [
        (
            [trial(n, [float(n)], x=n) for n in range(10)],
            "at least 20 trials.*here 10 trials have",
        ),
        ([trial(n, [float(n)], x=1) for n in range(20)], "at least 20 trials with a value, and a parameter"),
        ([trial(n, [math.nan], x=n) for n in range(20)], "here 0 trials have a value"),
        ([], "here 0 trials have a value"),
        ([trial(n, [1.0], x=n) for n in range(30)], "values that differ; all 30 trials have 1"),
    ],
)
def test_too_little_to_tell_is_refused(trials, said):
    with pytest.raises(RequestError, match=said):
        importance_of(record(*trials))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("num", [20, 21, 40])
def test_noise_gives_a_sentence_and_no_bars_and_no_warning(num):
    stream = np.random.default_rng(1)
    found = importance_of(record(*(trial(n, [float(stream.random())], x=n, y=(n * 7) % 11) for n in range(num))))
    figure = draw_importance(found)
    go.Figure(figure)
    assert found.explained <= 0 and figure["data"] == []
    assert figure["layout"]["annotations"][0]["text"].startswith("Nothing can be read from these")
    undefined = draw_importance(Importance(["x"], [math.nan], [math.nan], math.nan, 10))
    assert undefined["data"] == [] and "nan" not in undefined["layout"]["meta"]["text"]


def test_the_most_important_is_on_top_and_names_are_escaped():
    figure = draw_importance(Importance(["<b>", "x"], [0.5, 0.1], [0.1, 0.0], 0.4, 20))
    go.Figure(figure)
    assert figure["data"][0]["y"] == ["x", "&lt;b&gt;"]  # Plotly draws the last on top
