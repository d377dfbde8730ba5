"""Writes report.html: an experiment's figures and tables in one file that opens without a network."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from tuner.errors import RequestError
from tuner.errors.one_line import told
from tuner.record.columns import Column, table_columns
from tuner.record.confirm import ConfirmedSetting
from tuner.record.records import finite
from tuner.record.results import ExperimentRecord
from tuner.record.storage.files import open_in, write_atomically
from tuner.record.texts import duration, formatted, setting
from tuner.record.trial_row import TrialRow
from tuner.spec.command import shown_name
from tuner.views import tables
from tuner.views.costs import CostRow, cost_rows
from tuner.views.figures.catalogue import all_figures
from tuner.views.figures.importance import draw_importance, importance_of
from tuner.views.figures.parameters import draw_contour, parallel_of, varied
from tuner.views.figures.plot import Figure, escaped
from tuner.views.prediction import PredictionRow, prediction
from tuner.views.verdict import CLOSE_CALLS, verdict_of
from tuner.views.whatif import REPLAYED, AlternativeRow, alternative_rows, reproduced

FILE = "report.html"
TITLES = {  # the same titles as on the page
    "best": "Best trial", "front": "Pareto front", "confirmed": "Confirmed settings", "importance": "Importance",
    "curves": "Learning curves", "rung_values": "Values at each rung", "lineage": "Lineage",
    "history": "Best value so far", "parallel": "Parallel coordinates", "slices": "Slice plots",
    "failing": "Where trials fail", "timeline": "Timeline", "usage": "Resource usage",
}  # fmt: skip
WIDE = ("rung_values", "lineage", "parallel", "slices", "usage")  # they need at least the width of `.wide`
MOST_DECISIONS = 200  # maximum decisions in the table: those closest to their cutoff; the journal has all
MOST_TRIALS = 1000  # maximum rows of the table of trials; trials.csv has all trials
MOST_PARAMETERS = 4  # maximum parameters whose pairs get a contour; 4 parameters make six pairs
MOST_HEAD = 4096  # bytes at a report's beginning that have its title, and the policy below
WEB = Path(__file__).parent.parent / "serve" / "web"
DRAW = """
function drawAll() {
  for (const [name, figure] of Object.entries(FIGURES)) drawInto(document.getElementById(name), figure, name,
    (layout) => { if (name === "curves") layout.margin.t = 40; });
  if (pair) drawInto(document.getElementById("contour"), CONTOURS[pair.selectedIndex], pair.value);
}
const pair = document.getElementById("pair");
pair?.addEventListener("change", drawAll);
document.getElementById("all-values")?.addEventListener("change", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
for (const node of document.querySelectorAll("time")) {
  node.textContent = new Date(node.dateTime).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}
drawAll();
"""
# The policy lets the file load nothing from the network, whatever text a parameter contains. 'unsafe-eval' is for
# Plotly, which compiles its WebGL drawing by `new Function`.
POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"


# How a report begins: the first; an older one, without its mark: the second, and it has `POLICY`.
BEGINNINGS = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="generator" content="tuner">',
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>',
)


def write_report(record: ExperimentRecord) -> Path:
    """Writes or replaces report.html; RequestError if there is another program's file, or a link, of this name."""
    path = record.experiment.folder / FILE
    if os.path.lexists(path) and not _is_report(path):
        raise RequestError(f"{path} is not tuner's report; rename it, or move it away, to write the report")
    write_atomically(path, page(record).encode(errors="backslashreplace"))  # a file's name may contain a lone surrogate
    return path


def _is_report(path: Path) -> bool:
    try:
        with open_in(path.parent, path.name) as file:
            begins = file.read(MOST_HEAD)
    except OSError:
        return False
    old = begins.startswith(BEGINNINGS[1].encode()) and POLICY.encode() in begins
    return old or begins.startswith(BEGINNINGS[0].encode())


def page(record: ExperimentRecord) -> str:
    figures, name = all_figures(record), escaped(record.experiment.name)
    with suppress(RequestError), told("the figure 'importance' is not drawn"):  # RequestError: too few trials
        figures["importance"] = draw_importance(importance_of(record))
    contours: dict[str, Figure] = {}
    with told("the contours are not drawn"):
        pairs = combinations(parallel_of(record).axes[:MOST_PARAMETERS], 2)
        contours |= {f"{x.name}, {y.name}": draw_contour(record, x.name, y.name) for x, y in pairs if varied(x, y)}
    lines = [
        f"{BEGINNINGS[0]}<title>{name}</title>",
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<style>{(WEB / 'page.css').read_text()}</style></head><body><main><h1>{name}</h1>",
        *_summary(record),
        *_sections(record, figures, list(contours)),
        "</main>",
        *_scripts(figures, list(contours.values())),
        "</body></html>",
    ]
    return "\n".join(lines)


def _summary(record: ExperimentRecord) -> list[str]:
    e, best = record.experiment, tables.best_row(record)
    totals = ", ".join(f"{count} {status}" for status, count in record.stats.counts.items() if count) or "no trials"
    started, when = "", record.facts.get("created")
    if isinstance(when, (int, float)):  # in UTC; the page's script replaces it by the reader's local time
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))
        started = f'; started <time datetime="{stamp}">{stamp}</time>'
    rules = f"{e.searcher} + {e.scheduler}, seed {e.seed}" if e.space else "decisions not recorded"
    goals = [f"{goal.metric} ({goal.mode})" for goal in e.aim.goals] if e.aim.several else []
    known = {"started from": e.start_from, "guessed": e.prior, "metrics": goals, "constraints": e.constraint}
    rules += "".join(f"; {how} {', '.join(names)}" for how, names in known.items() if names)
    lines = [escaped(f"{shown_name(e.space) or 'Ray Tune folder'}: {rules}; {record.state}; {totals}") + started]
    if best:
        found = f"trial {best.trial}, epoch {best.epoch}: {setting(best.config)}"
        what = "Knee of the Pareto front" if e.aim.several else f"Best {e.wanted.metric} {formatted(best.value)}"
        lines.append(escaped(f"{what}: {found}"))
        if broken := record.broken():
            lines.append(escaped(f"No trial keeps all constraints; this one breaks them least: {broken}."))
    elif not record.refused:
        lines.append(escaped(f"No trial reported a finite {e.aim.named}."))
    if e.scheduler in REPLAYED and any(t.decisions for t in record.trials) and not e.aim.several:
        repeated = f"{reproduced(record)} of the {len(record.stats.stopped)} recorded prunes"
        lines.append(f"Check: with the search's own rules, a replay repeats {repeated}.")
    shown = [f"<p>{line}</p>" for line in lines]
    return [_verdict(record), *shown] + [
        f'<p class="notice">{escaped(notice)}</p>' for notice in tables.notices(record)
    ]


def _verdict(record: ExperimentRecord) -> str:
    """Returns the verdict as HTML, in the same kind of box that `verdict.js` makes on the page."""
    verdict = verdict_of(record)
    tone = {"refused": " bad", "failed": " bad", "finished": ""}.get(verdict.outcome, " open")
    close = {CLOSE_CALLS: "".join(f" {escaped(call.trial)}" for call in verdict.close_calls)}
    known = [
        f'<dt>{point.term}</dt><dd class="{point.tone}">{escaped(point.text)}{close.get(point.term, "")}'
        for point in verdict.points
    ]
    steps = [
        f'{"" if number else "<dt>next</dt>"}<dd class="next">{step.text} '
        f"{f'<code>{escaped(step.command)}</code>' if step.command else ''}"
        for number, step in enumerate(verdict.steps)
    ]
    points = "".join(f"{point}</dd>" for point in [*known, *steps])
    return f'<section class="verdict{tone}"><p>{escaped(verdict.ended)}</p><dl>{points}</dl></section>'


def _sections(record: ExperimentRecord, figures: dict[str, Figure], pairs: list[str]) -> list[str]:
    e = record.experiment
    heads = {"best": f"best {e.compared.metric}", "value": e.compared.metric} if e.prune_by else {}
    parts = {name: _figure(name, figures[name]) if name in figures else "" for name in TITLES}
    shown = [
        parts["best"], parts["confirmed"],
        _table("Confirmed settings, the best mean first", ConfirmedSetting, record.confirmation.settings),
        parts["front"],
        _table("Pareto front, its knee first", tables.FrontRow, tables.front_rows(record)),
        parts["curves"], parts["rung_values"], parts["lineage"],
        _table("Rungs", tables.RungRow, tables.rung_rows(record), **heads),
        _table(f"How well {e.compared.metric} predicts {e.wanted.metric}", PredictionRow, prediction(record)),
        _table("Decisions, the closest first", tables.DecisionRow, tables.decision_rows(record, limit=MOST_DECISIONS),
               **heads),
        _table("Replay with other pruning rules", AlternativeRow, alternative_rows(record)),
        parts["history"], parts["parallel"], parts["slices"],
        _contour(pairs), parts["importance"],
        parts["failing"], parts["timeline"], parts["usage"],
        _table("Cost of each value of a parameter", CostRow, cost_rows(record)),
        _table("Trials", TrialRow, tables.trial_rows(record, record.trials[:MOST_TRIALS]), e.wanted.metric),
    ]  # fmt: skip
    return [part for part in shown if part]


def _figure(name: str, figure: Figure) -> str:
    look = {"curves": "tall"}.get(name, "wide" if name in WIDE else "")
    node = f'<div id="{name}" class="figure {look}"></div>'
    text = f'<p id="{name}-text" class="figure-text">{escaped(figure["layout"]["meta"]["text"])}</p>'
    box = '<p class="controls"><label><input type="checkbox" id="all-values"> show outliers in all figures</label></p>'
    controls = box if name == "curves" else ""
    return f'<section><h2>{TITLES[name]}</h2>{controls}<div class="scroll" tabindex="0">{node}</div>{text}</section>'


def _contour(pairs: list[str]) -> str:
    if not pairs:
        return ""
    options = "".join(f"<option>{escaped(pair)}</option>" for pair in pairs)
    choice = f'<p class="controls"><label>x axis, y axis <select id="pair">{options}</select></label></p>'
    return f'<section><h2>Contour of two parameters</h2>{choice}<div id="contour" class="figure tall"></div></section>'


def _table(title: str, row: type, rows: Sequence[Any], metric: str = "", **heads: str) -> str:
    """Returns a section with a table of rows without empty columns; `heads` replaces the headings of some columns."""
    shown = [each for each in table_columns(row, "report") if any(getattr(one, each.name) is not None for one in rows)]
    if not shown:
        return ""
    looks = {"number": "number", "duration": "number", "text": "text", "parameters": "text"}
    head = "".join(
        f'<th scope="col" class="{looks.get(each.look, "").replace("text", "")}" title="{escaped(each.about)}">'
        f"{escaped(heads.get(each.name, each.head.replace('{metric}', metric)))}</th>"
        for each in shown
    )
    body = "".join(
        "<tr>" + "".join(f'<td class="{looks.get(c.look, "")}">{escaped(_cell(c, one))}</td>' for c in shown) + "</tr>"
        for one in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<section><h2>{escaped(title)}</h2><div class="scroll high" tabindex="0">{table}</div></section>'


def _cell(column: Column, row: Any) -> str:
    value = getattr(row, column.name)
    if value is None:
        return ""
    if column.look == "duration":
        return duration(value)
    return setting(value) if isinstance(value, dict) else formatted(value)


def _scripts(figures: dict[str, Figure], contours: list[Figure]) -> list[str]:
    plotly = importlib.util.find_spec("plotly")  # located, not imported: only its JavaScript is needed
    assert plotly and plotly.submodule_search_locations
    library = (Path(plotly.submodule_search_locations[0]) / "package_data" / "plotly.min.js").read_text()
    # `<` is written as a JSON escape, so that a parameter with the text "</script>" does not end the script.
    figured, contoured = (to_json(rounded(each)).decode().replace("<", "\\u003c") for each in (figures, contours))
    own = f"const FIGURES = {figured}, CONTOURS = {contoured};\n{(WEB / 'look.js').read_text()}\n{DRAW}"
    return [f"<script>{library}</script>", f'<script type="module">{own}</script>'] if figures else []


def rounded(value: Any) -> Any:
    """Rounds floats to seven digits, finer than any screen; this saves a third of the file. NaN and inf become None."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if finite(value) is not None else None
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value
