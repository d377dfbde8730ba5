// @ts-check
// The learning curves: their metric, their axis (epochs or time), logarithmic scales and smoothing.

import { at, attempt, offer, set } from "./dom.js";
import { shown } from "./experiment.js";
import { drawInto } from "./look.js";

/** @typedef {import("./api.js").Changes} Changes */

const PRUNED = ["pruned", "diverged", "stop", "cutoff"]; // traces of pruned and diverged trials only
const NO_CURVES = ["stop", "cutoff", "band"]; // traces of marks and quantiles

/** @param {string} id */
const isChecked = (id) => at(id, HTMLInputElement).checked;
/** @param {string} id */
const chosen = (id) => at(id, HTMLSelectElement).value;
const smoothing = at("smoothing", HTMLInputElement);

/** Offers the metrics that trials report.
 * @param {Changes} loaded */
export function drawCurveChoices({ metrics, summary }) {
  const [clock, metric] = (shown.now?.axis ?? "").split(/:(.*)/s);
  offer("curves-metric", metrics.map((name) => [name, name]), metric || summary.prune_by || summary.metric);
  at("curves-clock", HTMLSelectElement).value = clock;
}

/** @param {Changes} loaded */
export function drawCurves({ summary, figures: { curves } }) {
  const weight = Number(smoothing.value), axis = shown.now?.axis ?? "", logs = { xaxis: isChecked("log-epoch"), yaxis: isChecked("log-metric") };
  set(at("smoothed"), weight ? weight.toFixed(2) : "off");
  drawInto(at("curves"), curves, `${summary.name} ${axis}`, (layout, data) => {
    layout.margin.t = 40;
    for (const side of /** @type {const} */ (["xaxis", "yaxis"])) {
      // A zoom made on one scale means nothing on the other.
      if (!logs[side]) continue;
      Object.assign(layout[side], { type: "log", uirevision: "log", rangemode: "normal" });
      const range = layout[side].range; // of a clipped axis
      if (range) layout[side].range = range[0] > 0 ? range.map(Math.log10) : undefined;
    }
    if (logs.xaxis) {
      /** @param {{x: number}} annotation */
      const logarithmic = (annotation) => ({ ...annotation, x: Math.log10(annotation.x) }); // as Plotly needs it
      layout.annotations = layout.annotations.map(logarithmic);
    }
    if (weight) layout.yaxis.title = { text: `${layout.yaxis.title.text}, smoothed by ${weight.toFixed(2)}` };
    for (const trace of data) {
      trace.visible = isChecked("show-pruned") || !PRUNED.includes(trace.meta);
      if (weight && !NO_CURVES.includes(trace.meta)) trace.y = smoothed(trace.y, trace.customdata, weight);
    }
  });
}

/** Returns the moving averages of each trial's values, in which each earlier value weighs `weight` times the next one. As
 * in TensorBoard and W&B, the first averages are corrected for the values that they lack.
 * @param {(number | null)[]} values @param {(string | null)[]} trials @param {number} weight at least 0, below 1 */
function smoothed(values, trials, weight) {
  let average = 0, sum = 0;
  return values.map((value, i) => {
    if (trials[i] !== trials[i - 1]) average = sum = 0;
    if (value === null) return null;
    average = weight * average + (1 - weight) * value;
    sum = weight * sum + 1 - weight;
    return average / sum;
  });
}

function choose() {
  const metric = chosen("curves-metric"), loaded = shown.now?.loaded, usual = loaded?.summary.prune_by || loaded?.summary.metric;
  attempt(() => shown.now?.choose("axis", `${chosen("curves-clock")}${metric === usual ? "" : `:${metric}`}`));
}

for (const id of ["curves-metric", "curves-clock"]) at(id).addEventListener("change", choose);
for (const id of ["show-pruned", "log-metric", "log-epoch"]) at(id).addEventListener("change", () => shown.now?.loaded && drawCurves(shown.now.loaded));
smoothing.addEventListener("input", () => shown.now?.loaded && drawCurves(shown.now.loaded));
