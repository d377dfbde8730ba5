// @ts-check
// Pinned trials side by side: status, cost, settings and decisions in a table, learning curves in a figure.

import { addressOf } from "./address.js";
import { at, flat, number, set, trialDuration } from "./dom.js";
import { shown } from "./experiment.js";
import { fill } from "./grid.js";
import { drawInto } from "./look.js";
import { choice, subscribe } from "./selection.js";
import { get } from "./service.js";

/** @typedef {import("./api.js").Changes} Changes */
/** @typedef {import("./api.js").OneTrial} OneTrial */
/** @typedef {{head: string, values: unknown[], isSetting: boolean}} Line */

// Colours of Okabe and Ito, dashes and marks: lines differ without colour, too.
const LOOKS = [["#0072b2", "solid", "circle"], ["#d55e00", "dash", "square"], ["#009e73", "dot", "diamond"],
  ["#cc79a7", "dashdot", "cross"], ["#e69f00", "longdash", "x"], ["#56b4e9", "solid", "triangle-up"],
  ["#8b93a7", "dash", "star"], ["#a0522d", "dot", "hexagon"]];

/** @type {Map<string, {lines: number, answer: OneTrial | null, problem: string}>} The answers about pinned trials. */
const known = new Map();
let knownOf = ""; // the experiment of these answers
let isLoading = false;

/** Loads what is missing about the pinned trials, and shows them.
 * @param {Changes} loaded */
export async function drawPinned(loaded) {
  const experiment = shown.now, pinned = [...choice.now.pinned];
  at("pinned-section").hidden = pinned.length < 2;
  if (!experiment || pinned.length < 2) return;
  if (knownOf !== experiment.name) known.clear();
  knownOf = experiment.name;
  show(loaded);
  if (isLoading) return;
  isLoading = true;
  try {
    const changed = new Map(loaded.trials.map((row) => [row.trial, row]));
    const isOld = (/** @type {string} */ trial) => {
      const answer = known.get(trial), row = changed.get(trial);
      return !answer || (answer.answer ? row && (row.epochs !== answer.answer.row.epochs || row.status !== answer.answer.row.status)
        : answer.lines !== loaded.summary.lines);
    };
    const missing = pinned.filter(isOld);
    for (const trial of missing) {
      try {
        const answer = await get(`${experiment.path}/trials/${encodeURIComponent(trial)}`);
        known.set(trial, { lines: loaded.summary.lines, answer, problem: "" });
      } catch (error) {
        known.set(trial, { lines: loaded.summary.lines, answer: null, problem: error instanceof Error ? error.message : String(error) });
      }
      if (experiment.isClosed) return;
    }
    if (missing.length) show(loaded);
  } finally {
    isLoading = false;
  }
  const missed = [...choice.now.pinned].some((trial) => !known.has(trial)); // pinned meanwhile
  if (missed && !experiment.isClosed && experiment.loaded) drawPinned(experiment.loaded);
}

/** @param {Changes} loaded */
function show({ summary }) {
  const pinned = [...choice.now.pinned].map((trial) => ({ trial, ...known.get(trial) }));
  const problems = pinned.flatMap(({ trial, problem }) => (problem ? [`${trial}: ${problem}`] : []));
  const isWaiting = pinned.some(({ trial }) => !known.has(trial));
  set(at("pinned-status"), isWaiting ? "loading ..." : problems.join("; "));
  const answers = pinned.flatMap(({ answer }) => (answer ? [answer] : []));
  const lines = linesOf(answers), isShort = at("only-differences", HTMLInputElement).checked;
  const trials = answers.map(({ row }) => row.trial);
  fill(at("pinned", HTMLTableElement), columnsOf(summary.name, trials), isShort ? lines.filter(differs) : lines);
  const isDrawn = answers.some(({ metrics }) => metrics.length);
  at("pinned_curves").hidden = !isDrawn;
  if (isDrawn) drawInto(at("pinned_curves"), curvesOf(answers, summary.metric), `${summary.name} pinned`);
}

/** @param {Line} line */
const differs = ({ values }) => new Set(values.map((value) => JSON.stringify(value))).size > 1;
/** Only settings are marked: results differ anyway.
 * @param {Line} line */
const look = (line) => (line.isSetting && differs(line) ? "differs" : "");

/** @param {string} experiment @param {string[]} trials @returns {import("./grid.js").Column<Line>[]} */
const columnsOf = (experiment, trials) => [{ head: "value", value: (line) => line.head, isHead: true, look },
  ...trials.map((trial, i) => ({ head: trial, href: addressOf(experiment, trial), look,
    value: (/** @type {Line} */ line) => line.values[i] }))];

/** Returns what the table shows of each trial: a line for each value, parameter and rung.
 * @param {OneTrial[]} answers @returns {Line[]} */
function linesOf(answers) {
  /** @param {string} head @param {(answer: OneTrial) => unknown} value */
  const line = (head, value) => ({ head, values: answers.map(value), isSetting: false });
  const settings = answers.map(({ row }) => new Map(flat(row.config)));
  const names = [...new Set(settings.flatMap((setting) => [...setting.keys()]))];
  /** @type {Map<string, string>} */
  const rungs = new Map();
  for (const { decisions } of answers) for (const decision of decisions) rungs.set(keyOf(decision), nameOf(decision));
  return [
    line("status", ({ row }) => row.status),
    line("best value", ({ row }) => row.best),
    line("best epoch", ({ row }) => row.best_epoch),
    line("last value", ({ row }) => row.last),
    line("epochs", ({ row }) => row.epochs),
    ...names.map((name) => ({ head: name, isSetting: true,
      values: settings.map((setting) => (setting.has(name) ? setting.get(name) ?? "null" : "")) })),
    ...[...rungs].map(([key, name]) => line(name, ({ decisions }) => {
      const decision = decisions.filter((each) => keyOf(each) === key).at(-1);
      if (!decision) return "";
      const value = decision.value === null ? "" : ` ${number(decision.value)}`;
      return `${decision.outcome}${value}${decision.cutoff === null ? "" : `, cutoff ${number(decision.cutoff)}`}`;
    })),
    line("duration", ({ row }) => trialDuration(row.seconds)),
    line("cost", ({ cost }) => cost),
    line("reason", ({ row }) => row.reason),
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

/** Escapes a text as figures need it: Plotly reads texts as HTML.
 * @param {string} content */
const escaped = (content) => content.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;")
  .replaceAll('"', "&quot;").replaceAll("'", "&#x27;");

at("only-differences").addEventListener("change", () => { if (shown.now?.loaded) show(shown.now.loaded); });
subscribe((now, before) => {
  if (now.pinned !== before.pinned && shown.now?.loaded) drawPinned(shown.now.loaded);
});
