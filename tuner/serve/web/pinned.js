// @ts-check
// Pinned trials side by side: status, cost, settings and decisions in a table, learning curves in a figure.

import { addressOfTrial } from "./address.js";
import { at, escaped, flat, number, set } from "./dom.js";
import { shown } from "./experiment.js";
import { fill } from "./grid.js";
import { drawInto } from "./look.js";
import { choice, subscribe } from "./selection.js";
import { USAGE, columnsOf } from "./tables.js";

/** @typedef {import("./api.js").Changes} Changes */
/** @typedef {import("./api.js").OneTrial} OneTrial */
/** @typedef {{head: string, values: unknown[], isSetting: boolean}} Line */

// Colours of Okabe and Ito, dashes and marks: lines differ without colour, too.
const LOOKS = [["#0072b2", "solid", "circle"], ["#d55e00", "dash", "square"], ["#009e73", "dot", "diamond"],
  ["#cc79a7", "dashdot", "cross"], ["#e69f00", "longdash", "x"], ["#56b4e9", "solid", "triangle-up"],
  ["#8b93a7", "dash", "star"], ["#a0522d", "dot", "hexagon"]];

let turns = 0; // calls of drawPinned: a later one takes the place of an earlier one

/** Loads what is missing about the pinned trials, and shows them.
 * @param {Changes} loaded */
export async function drawPinned({ summary, columns }) {
  const experiment = shown.now, pinned = [...choice.now.pinned], turn = ++turns;
  at("pinned-section").hidden = pinned.length < 2;
  if (!experiment || !at("pinned-section").offsetParent) return;
  const found = await Promise.allSettled(pinned.map((trial) => experiment.details(trial)));
  if (turn !== turns || experiment.isClosed) return;
  const answers = found.flatMap((each) => (each.status === "fulfilled" ? [each.value] : []));
  set(at("pinned-status"), found.flatMap((each, i) => (each.status === "rejected" ? [`${pinned[i]}: ${each.reason.message}`] : [])).join("; "));
  const lines = linesOf(answers, columns.trials, summary.metric), isShort = at("only-differences", HTMLInputElement).checked;
  fill(at("pinned"), trialsOf(answers.map(({ row }) => row.trial)), isShort ? lines.filter(differs) : lines);
  const isDrawn = answers.some(({ metrics }) => metrics.length);
  at("pinned_curves").hidden = !isDrawn;
  if (isDrawn) drawInto(at("pinned_curves"), curvesOf(answers, summary.metric), `${summary.name} pinned`);
}

/** @param {Line} line */
const differs = ({ values }) => new Set(values.map((value) => JSON.stringify(value))).size > 1;
/** Only settings are marked: results differ anyway.
 * @param {Line} line */
const look = (line) => (line.isSetting && differs(line) ? "differs" : "");

/** @param {string[]} trials @returns {import("./grid.js").Column<Line>[]} */
const trialsOf = (trials) => [{ head: "value", value: (line) => line.head, look },
  ...trials.map((trial, i) => ({ head: trial, href: addressOfTrial(trial), look,
    value: (/** @type {Line} */ line) => line.values[i] }))];

/** Returns what the table shows of each trial: a line for each value, parameter and rung.
 * @param {OneTrial[]} answers @param {import("./api.js").Column[]} described @param {string} metric @returns {Line[]} */
function linesOf(answers, described, metric) {
  /** @param {string} head @param {(answer: OneTrial) => unknown} value */
  const line = (head, value) => ({ head, values: answers.map(value), isSetting: false });
  const shownOf = columnsOf(described.filter(({ look, rare }) => !rare && !["trial", "parameters", "metrics"].includes(look)), metric);
  /** @param {import("./grid.js").Column<any>} column */
  const ofRow = ({ head, text, value }) => line(head, ({ row }) => (text ?? value)?.(row));
  const settings = answers.map(({ row }) => new Map(flat(row.config)));
  const names = [...new Set(settings.flatMap((setting) => [...setting.keys()]))];
  /** @type {Map<string, string>} */
  const rungs = new Map();
  for (const { decisions } of answers) for (const decision of decisions) rungs.set(keyOf(decision), nameOf(decision));
  return [
    ...shownOf.filter(({ look }) => look !== "text").map(ofRow),
    ...[...new Set(answers.flatMap(({ row }) => Object.keys(row.metrics)))].filter((name) => !USAGE.test(name)).map((name) => line(`${name} at the best epoch`, ({ row }) => row.metrics[name]?.[0])),
    ...names.map((name) => ({ head: name, isSetting: true,
      values: settings.map((setting) => (setting.has(name) ? setting.get(name) ?? "null" : "")) })),
    ...[...rungs].map(([key, name]) => line(name, ({ decisions }) => {
      const decision = decisions.filter((each) => keyOf(each) === key).at(-1);
      if (!decision) return "";
      const value = decision.value === null ? "" : ` ${number(decision.value)}`;
      return `${decision.outcome}${value}${decision.cutoff === null ? "" : `, cutoff ${number(decision.cutoff)}`}`;
    })),
    line("cost", ({ cost }) => cost),
    ...shownOf.filter(({ look }) => look === "text").map(ofRow),
  ];
}

/** @param {import("./api.js").DecisionRow} decision */
const keyOf = ({ rung, bracket, band, epoch }) => JSON.stringify(rung === null ? [epoch] : [rung, bracket, band]);

/** @param {import("./api.js").DecisionRow} decision */
function nameOf({ rung, bracket, band, epoch }) {
  if (rung === null) return `decision at epoch ${epoch}`;
  return `decision at rung ${rung}${bracket ? `, bracket ${bracket}` : ""}${band ? `, band ${band}` : ""}`;
}

/** Draws the learning curves of the trials, each in its own colour, dashes and marks.
 * @param {OneTrial[]} answers @param {string} metric @returns {import("./api.js").Figure} */
function curvesOf(answers, metric) {
  const data = answers.map(({ row, metrics }, i) => {
    const [color, dash, symbol] = LOOKS[i % LOOKS.length];
    const values = metrics.map((report) => report[metric]);
    return { type: "scatter", mode: "lines+markers", name: `trial ${escaped(row.trial)}`, meta: "pinned",
      x: metrics.map((report) => report.epoch), y: values.map((value) => (typeof value === "number" ? value : null)),
      customdata: metrics.map(() => escaped(row.trial)), line: { color, dash, width: 2 }, marker: { color, symbol, size: 7 },
      hovertemplate: `trial ${escaped(row.trial)}<br>epoch %{x}: %{y:.5g}<extra></extra>` };
  });
  const described = answers.map(({ row }) => `trial ${row.trial} ${row.status} after ${row.epochs} epochs, best ${number(row.best)}`);
  return { data, layout: { xaxis: { title: { text: "epoch" }, rangemode: "tozero" }, yaxis: { title: { text: escaped(metric) } },
    hovermode: "closest", showlegend: true, legend: { orientation: "h", yanchor: "bottom", y: 1.02, x: 0 },
    margin: { l: 60, r: 16, t: 40, b: 44 },
    meta: { text: `Learning curves of the pinned trials: ${described.join("; ")}.` } } };
}

at("only-differences").addEventListener("change", () => { if (shown.now?.loaded) drawPinned(shown.now.loaded); });
subscribe((now, before) => {
  if (now.pinned !== before.pinned && shown.now?.loaded) drawPinned(shown.now.loaded);
});
