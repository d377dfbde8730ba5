"""Draws the answer of a search: the Pareto front of several metrics, and the settings that other seeds confirmed."""

from __future__ import annotations

from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted, formatted
from tuner.views.figures import plot

MAX_DOTS_BESIDE_FRONT = 2000  # maximum trials beside the front: an even sample of more


def draw_front(record: ExperimentRecord) -> plot.Figure | None:
    """Draws all trials over the first two metrics, the front as a line, and its knee; None with one metric."""
    aim, front = record.experiment.aim, record.front()
    if not aim.several or not front:
        return None
    x, y, *more = (goal.metric for goal in aim.goals)
    reports = [(trial, report) for trial in record.searched if (report := trial.best(aim))]
    every = -(-len(reports) // MAX_DOTS_BESIDE_FRONT) or 1
    dots, on_front = (
        [(r.metrics[x], r.metrics[y], t.id, f"{plot.label_of(t)}<br>epoch {r.epoch}") for t, r in some]
        for some in (reports[::every], sorted(front, key=lambda answer: answer[1].metrics[x]))
    )
    knee = next(point for point in on_front if point[2] == front[0][0].id)
    hover = {"hovertemplate": f"%{{text}}<br>{plot.escaped(x, 40)} %{{x:.5g}}<br>{plot.escaped(y, 40)} %{{y:.5g}}"
             "<extra></extra>"}  # fmt: skip
    name = "trials" if every == 1 else f"{len(dots):,} of {len(reports):,} trials"
    mode = "markers" if more else "lines+markers"  # with a third metric, a line would go to and fro
    gray, blue = {"color": plot.GRAY, "size": 6, "opacity": 0.6}, {"color": plot.MAIN_COLOR, "size": 8}
    star = {"color": plot.BEST_COLOR, "size": 15, "symbol": "star"}
    traces = [
        plot.points("markers", dots, name=name, meta="trials", marker=gray, **hover),
        plot.points(mode, on_front, name="Pareto front", meta="front", marker=blue, line={"width": 1.5}, **hover),
        plot.points("markers", [knee], name="knee", meta="best", marker=star, **hover),
    ]
    others = f" It shows two of {2 + len(more)} metrics; the table has all." if more else ""
    text = (
        f"{counted(len(front), 'trial')} on the Pareto front of {counted(len(reports), 'trial')}. Each trial counts by "
        f"one report: the last one that none of its earlier reports beats. The knee is trial "
        f"{plot.tick(front[0][0].id, 40)}: {plot.tick(x, 40)} {knee[0]:.5g}, {plot.tick(y, 40)} {knee[1]:.5g}.{others}"
    )
    titles = [plot.titled(plot.escaped(f"{goal.metric} ({goal.mode})", 60)) for goal in aim.goals[:2]]
    return plot.figure(traces, text, xaxis=titles[0], yaxis=titles[1], legend=plot.LEGEND)


def draw_confirmed(record: ExperimentRecord) -> plot.Figure | None:
    """Draws each confirmed setting's values, their mean with its interval, and the value in the search."""
    settings = [each for each in record.confirmation.settings if each.mean is not None]
    if not settings:
        return None
    metric = record.experiment.wanted.metric
    names = [f"setting of {plot.escaped(each.trial, 40)}" for each in settings]
    pairs = list(zip(settings, names, strict=True))
    hover = {"hovertemplate": "%{y}<br>%{text}: %{x:.5g}<extra></extra>"}
    values = [
        (v, n, t, "another seed") for s, n in pairs for v, t in zip(s.values, s.trials, strict=False) if v is not None
    ]
    found = [(s.single, n, s.trial, "the value in the search") for s, n in pairs]
    means = [(s.mean, n, s.trial, "mean") for s, n in pairs]
    ends = [
        (s.low if s.low is not None else s.mean, s.high if s.high is not None else s.mean, s.mean) for s in settings
    ]
    error = {
        "type": "data", "symmetric": False, "array": [high - mean for _, high, mean in ends],  # type: ignore[operator]
        "arrayminus": [mean - low for low, _, mean in ends],  # type: ignore[operator]
    }  # fmt: skip
    dot, star = {"color": plot.GRAY, "size": 7}, {"color": plot.STOP_COLOR, "size": 10, "symbol": "diamond-open"}
    traces = [
        plot.points("markers", values, name="other seeds", meta="trials", marker=dot, **hover),
        plot.points("markers", found, name="value in the search", meta="trials", marker=star, **hover),
        plot.points(
            "markers", means, name="mean and its 95 % interval", meta="best", error_x=error,
            marker={"color": plot.MAIN_COLOR, "size": 10}, **hover,
        ),
    ]  # fmt: skip
    known = [
        f"{plot.tick(s.trial, 40)} {formatted(s.mean)}"
        + (f" ({formatted(s.low)} to {formatted(s.high)})" if s.low is not None else "")
        for s in settings
    ]
    rows = {"type": "category", "categoryorder": "array", "categoryarray": names[::-1], "automargin": True}
    text = f"Mean {plot.tick(metric, 40)} over other seeds, with its 95 % interval: {'; '.join(known)}."
    title = plot.titled(plot.escaped(metric, 60))
    return plot.figure(traces, text, xaxis=title, yaxis=rows, legend=plot.LEGEND, height=140 + 44 * len(names))
