"""Parameter importance: how much worse a random forest predicts the trials' ranking when one parameter is shuffled.

This is the permutation importance of Breiman (2001). Its uncertainty is the spread over REPEATS forests, each trained
on another bootstrap sample of the trials and scored on the trials outside that sample.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tuner.errors import RequestError
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.views.figures import plot
from tuner.views.figures.parameters import parallel_of

REPEATS = 10
SHUFFLES = 3  # of each parameter in each forest
# With 15, 20 and 30 trials, R^2 was above 0 in 15, 22 and 29 of 30 synthetic searches. In one of these searches (15
# trials), the first bar was wrong. Where no parameter matters, R^2 was above 0 in 1 of 50 searches.
LEAST_TRIALS = 20


class Importance(NamedTuple):
    """Per parameter, R^2's mean drop when that parameter is shuffled, and the drop's standard deviation over forests.

    `sampled` says of which sample the trials are, if they are one.
    `explained` is the mean R^2 on trials that a forest was not trained on; if it is not above 0, the drops mean
    nothing. `values` names the compared values: `loss at epoch 4`. The parameter with the largest drop comes first.
    """

    names: list[str]
    means: list[float]
    deviations: list[float]
    explained: float
    trials: int
    values: str = "value"
    sampled: str = ""


def importance_of(record: ExperimentRecord, choice: str = "") -> Importance:
    """Computes each varying parameter's importance; raises RequestError for too few trials, parameters or values."""
    parallel = parallel_of(record, choice)
    count = len(parallel.trials)
    if count < LEAST_TRIALS or not parallel.axes:
        raise RequestError(
            f"importance needs at least {LEAST_TRIALS} trials with a value, and a parameter that differs between them; "
            f"here {counted(count, 'trial')} {'has' if count == 1 else 'have'} a value"
        )
    x = np.array([axis.filled(1.0) for axis in parallel.axes]).T
    # Ranks instead of values, because a single trial that diverged to 1e30 would dominate every split of a forest.
    distinct, ranks = np.unique(parallel.values, return_inverse=True)
    if len(distinct) < 2:
        raise RequestError(f"importance needs values that differ; all {count} trials have {distinct[0]:.5g}")
    y = ranks / (len(distinct) - 1)
    drops, scores = zip(*(_one_forest(x, y, seed) for seed in range(REPEATS)), strict=True)
    means, deviations = np.mean(drops, axis=0), np.std(drops, axis=0, ddof=1)
    order = np.argsort(-means)
    names = [parallel.axes[i].name for i in order]
    explained = float(np.mean(scores))
    sampled = "" if count == parallel.total else f" (an even sample of {parallel.total:,})"
    return Importance(
        names, means[order].tolist(), deviations[order].tolist(), explained, count, parallel.title, sampled
    )


def _one_forest(x: Any, y: Any, seed: int) -> tuple[Any, float]:
    """Trains one forest; returns R^2's drop per parameter, and R^2, on the trials not in its sample (about 37 %)."""
    from sklearn.ensemble import RandomForestRegressor

    stream = np.random.default_rng(seed)
    drawn = stream.integers(0, len(x), len(x))
    unseen = np.setdiff1d(np.arange(len(x)), drawn)
    forest = RandomForestRegressor(n_estimators=50, min_samples_leaf=2, random_state=seed).fit(x[drawn], y[drawn])
    # One prediction for all shuffled copies: scikit-learn's permutation_importance predicts each, and takes as long as
    # all else together.
    shuffled = np.tile(x[unseen], (x.shape[1], SHUFFLES, 1, 1))
    for column, copies in enumerate(shuffled):
        copies[:, :, column] = stream.permuted(copies[:, :, column], axis=1)
    predicted = forest.predict(shuffled.reshape(-1, x.shape[1])).reshape(x.shape[1], -1)
    worse = ((predicted - np.tile(y[unseen], SHUFFLES)) ** 2).mean(axis=1) - (
        (forest.predict(x[unseen]) - y[unseen]) ** 2
    ).mean()
    with np.errstate(divide="ignore", invalid="ignore"):  # all unseen ranks may be equal
        drops = np.nan_to_num(worse / y[unseen].var(), posinf=0.0, neginf=0.0)
    return drops, float(forest.score(x[unseen], y[unseen]))


def draw_importance(data: Importance) -> plot.Figure:
    """Draws one bar per parameter, or a sentence if the forests predict unseen trials no better than the mean does."""
    number = f"{counted(data.trials, 'trial')}{data.sampled}"
    values, explained = plot.tick(data.values, 60), f"{data.explained:.2f}"
    if not data.explained > 0:
        return plot.empty_figure(
            f"Nothing can be read from these {number}: the forests predict the ranks of {values} in unseen trials no "
            f"better than their mean does (R² {'undefined' if math.isnan(data.explained) else explained}). More trials "
            "may change that."
        )
    names = [plot.escaped(name, 24) for name in data.names[::-1]]
    bars = {
        "type": "bar", "orientation": "h", "meta": "parameters", "x": data.means[::-1], "y": names,
        "marker": {"color": plot.MAIN_COLOR}, "error_x": {"type": "data", "array": data.deviations[::-1]},
        "hovertemplate": "%{y}: %{x:.3f} ± %{error_x.array:.3f}<extra></extra>",
    }  # fmt: skip
    what = plot.escaped(data.values, 60)
    label = f"decrease of R² when shuffled ({what})<br>(R² on unseen trials: {explained}, {number})"
    first = f"{plot.tick(data.names[0], 40)} matters most: shuffling it lowers R² by {data.means[0]:.2f}"
    others = [f"{plot.tick(name, 40)} {mean:z.2f}" for name, mean in zip(data.names, data.means, strict=True)][1:6]
    rest = f"; {', '.join(others)}" if others else ""
    text = f"Importance for {values} of {number}: {first}{rest}. R² on unseen trials is {explained}."
    # In a narrow figure, Plotly's automatic margin cuts off the first letters of the labels.
    margin = {"l": 24 + 8 * max(map(len, names)), "r": 16, "t": 12, "b": 74}
    height = 120 + 34 * len(data.names)
    return plot.figure([bars], text, xaxis=plot.titled(label), height=height, showlegend=False, margin=margin)
