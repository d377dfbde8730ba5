"""Parameter importance: how much worse a random forest predicts the trials' ranking when one parameter is shuffled.

This is the permutation importance of Breiman (2001), computed by scikit-learn (the extra `importance`). The reported
uncertainty is the spread over REPEATS forests. Each forest is trained on another bootstrap sample of the trials and
scored on the trials outside that sample.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any, NamedTuple

import numpy as np

from tuner.errors import RequestError
from tuner.record.results import ExperimentRecord
from tuner.views.labels import MAIN_COLOR, escaped
from tuner.views.parallel import parallel_of

REPEATS = 10
LEAST_TRIALS = 10
INSTALL = "pip install 'tuner[importance]'"


class Importance(NamedTuple):
    """Per parameter, the mean drop of R^2 when it is shuffled, and the standard deviation of that drop over forests.

    The most important parameter comes first. `explained` is the mean R^2 on trials outside a forest's training
    sample; if it is 0 or below, the drops mean nothing.
    """

    names: list[str]
    means: list[float]
    deviations: list[float]
    explained: float
    trials: int


def importance_of(record: ExperimentRecord) -> Importance:
    """Computes the importance of each parameter that differs between the trials with a finite value.

    If more than MOST_LINES (1,000) trials have one, it uses every n-th of them, and the winner.

    Raises:
        RequestError: scikit-learn is not installed, or there are too few trials or parameters.
    """
    if importlib.util.find_spec("sklearn") is None:
        raise RequestError(f"importance needs scikit-learn: {INSTALL}")
    parallel = parallel_of(record)
    axes = parallel.axes
    count = len(parallel.trials) if axes else 0
    if count < LEAST_TRIALS or len(axes) < 2:
        raise RequestError(
            f"importance needs at least {LEAST_TRIALS} trials with a value, and a parameter that differs between them"
        )
    x = np.array([axis.filled(1.0) for axis in axes[:-1]]).T
    # Ranks instead of values, because a single trial that diverged to 1e30 would dominate every split of a forest.
    y = np.argsort(np.argsort(parallel.best, kind="stable")) / max(1, len(x) - 1)
    drops, scores = zip(*(_one_forest(x, y, seed) for seed in range(REPEATS)), strict=True)
    means, deviations = np.mean(drops, axis=0), np.std(drops, axis=0, ddof=1)
    order = np.argsort(-means)
    return Importance(
        [axes[i].name for i in order],
        [float(means[i]) for i in order],
        [float(deviations[i]) for i in order],
        float(np.mean(scores)),
        len(x),
    )


def _one_forest(x: Any, y: Any, seed: int) -> tuple[Any, float]:
    """Trains one forest; returns the drop per parameter and R^2 on the trials outside its sample, about 37 %."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    stream = np.random.default_rng(seed)
    drawn = stream.integers(0, len(x), len(x))
    unseen = np.setdiff1d(np.arange(len(x)), drawn)
    forest = RandomForestRegressor(n_estimators=50, min_samples_leaf=2, random_state=seed).fit(x[drawn], y[drawn])
    importance = permutation_importance(forest, x[unseen], y[unseen], n_repeats=3, random_state=seed)
    return importance.importances_mean, float(forest.score(x[unseen], y[unseen]))


def draw_importance(data: Importance) -> dict[str, Any]:
    """Draws one bar per parameter with its standard deviation, the most important parameter on top."""
    bars = {"type": "bar", "orientation": "h", "x": data.means[::-1], "marker": {"color": MAIN_COLOR}}
    names = [escaped(name, 24) for name in data.names[::-1]]
    bars |= {"y": names}
    bars |= {"error_x": {"type": "data", "array": data.deviations[::-1]}}
    bars |= {"hovertemplate": "%{y}: %{x:.3f} ± %{error_x.array:.3f}<extra></extra>"}
    explained = 0.0 if math.isnan(data.explained) else data.explained
    label = f"decrease of R² when shuffled<br>(R² on unseen trials: {explained:.2f})"
    return {
        "data": [bars],
        "layout": {
            "xaxis": {"title": {"text": label}},
            "height": 110 + 34 * len(data.names),
            "showlegend": False,
            # In a narrow figure, Plotly's automatic margin cuts off the first letters of the labels.
            "margin": {"l": 24 + 8 * max(map(len, names)), "r": 16, "t": 12, "b": 64},
        },
    }
