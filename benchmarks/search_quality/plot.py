"""Draws the mean regret of each method over the budget, a panel for each number of workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.search_quality.regret import Floats
from benchmarks.search_quality.summary import Compared, relative

OURS_WIDTH, WIDTH = 2.5, 1.2


def draw(
    all_compared: list[Compared], budgets_of: dict[int, dict[str, Floats]], full_s: dict[str, float], path: Path
) -> None:
    """Writes the plot; the file's ending chooses the format."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    drawn = [each for each in all_compared if each.tables]
    if not drawn:
        return
    columns = min(2, len(drawn))
    rows = -(-len(drawn) // columns)
    size = (2 + 4 * columns, 0.5 + 3.5 * rows)
    figure, panels = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    names = list(dict.fromkeys(name for each in drawn for name in each.methods))
    colours = dict(zip(names, pyplot.colormaps["tab20"](np.linspace(0, 1, max(2, len(names)))), strict=False))
    for panel in panels.flat[len(drawn) :]:
        panel.set_visible(False)
    for panel, each in zip(panels.flat, drawn, strict=False):
        budgets = relative(each, budgets_of[each.workers], full_s)
        for name, regrets in zip(each.methods, each.means().mean(axis=0), strict=True):
            width = OURS_WIDTH if name.startswith("ours:") else WIDTH
            panel.plot(budgets, regrets, label=name, color=colours[name], linewidth=width)
        panel.set(xscale="log", yscale="log", title=f"workers: {each.workers}")
        panel.set(xlabel="full trainings a worker", ylabel="mean normalised regret")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
        panel.grid(alpha=0.3)
    handles = {}
    for panel in panels.flat[: len(drawn)]:
        handles |= dict(zip(*panel.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize="small")
    figure.savefig(path)
    pyplot.close(figure)
