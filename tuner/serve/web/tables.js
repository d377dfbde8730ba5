// @ts-check
// The columns of the page's tables: their headings, values and looks.

import { addressOfTrial } from "./address.js";
import { bytes, duration, flat, number, parameters, shownAs, trialDuration } from "./dom.js";

/** @typedef {import("./api.js").Summary} Summary */
/** @typedef {import("./api.js").TrialRow} TrialRow */
/** @typedef {import("./api.js").RungRow} RungRow */
/** @typedef {import("./api.js").DecisionRow} DecisionRow */
/** @typedef {import("./api.js").Fate} Fate */
/** @typedef {import("./api.js").AuditedTrial} AuditedTrial */
/** @template Row @typedef {import("./grid.js").Column<Row>} Column */

export const ALL_ROWS = 10000; // the most that the service sends in one response
const MOST_PARAMETERS = 100; // that have a column; one more column has the others

/** @param {{trial: string}} row */
const link = (row) => addressOfTrial(row.trial);

/** Whether the search has ended, and its request was wrong or it has no result.
 * @param {Summary} summary */
export const isWithoutAnswer = ({ state, outcome }) =>
  ["finished", "failed"].includes(state) && ["refused", "failed"].includes(outcome);

/** Returns the state, or how the search ended where that says more: without an answer, or out of time.
 * @param {Summary} summary */
export const ending = (summary) =>
  isWithoutAnswer(summary) || summary.outcome === "out of time" ? summary.outcome : summary.state;

/** @param {Summary} summary */
export function state(summary) {
  const silent = Date.now() / 1000 - (summary.updated ?? 0);
  return summary.state === "running" && silent > 600 ? `running? no event for ${duration(silent)}` : ending(summary);
}

/** Returns searcher and scheduler; only one of them if both are equal, for example "not recorded".
 * @param {Summary} e */
export const rules = (e) => [...new Set([e.searcher, e.scheduler])];

/** @type {Column<RungRow>[]} */
export const RUNGS = [
  { head: "rung", value: (r) => r.rung, look: "number", about: "epochs at which the scheduler compares trials" },
  { head: "bracket", value: (r) => r.bracket, look: "number", spare: true },
  { head: "band", value: (r) => r.band, look: "number", spare: true, about: "hyperband and bohb have several brackets in each band" },
  { head: "reached", value: (r) => r.reached, look: "number", about: "trials that reached the rung" },
  { head: "continued", value: (r) => r.continued, look: "number", about: "of them, those that trained on" },
  { head: "pruned", value: (r) => r.stopped, look: "number" },
  { head: "paused", value: (r) => r.waiting, look: "number" },
  { head: "best value", value: (r) => r.best, look: "number" },
  { head: "last cutoff used", value: (r) => r.cutoff_then, look: "number",
    about: "the cutoff when the last trial was compared" },
  { head: "cutoff with all results", value: (r) => r.cutoff_now, look: "number",
    about: "the cutoff over all trials that reached the rung" },
  { head: "would survive today", value: (r) => r.would_survive, look: "number",
    about: "pruned trials whose value at the rung is at least as good as the cutoff with all results" },
];

/** @type {Column<DecisionRow>[]} */
export const DECISIONS = [
  { head: "trial", value: (d) => d.trial, link },
  { head: "outcome", value: (d) => d.outcome, look: (d) => d.outcome,
    about: "continued, paused, pruned; completed or failed if the trial ended by itself" },
  { head: "epoch", value: (d) => d.epoch, look: "number" },
  { head: "rung", value: (d) => d.rung, look: "number" },
  { head: "bracket", value: (d) => d.bracket, look: "number", spare: true },
  { head: "band", value: (d) => d.band, look: "number", spare: true },
  { head: "value", value: (d) => d.value, look: "number" },
  { head: "cutoff", value: (d) => d.cutoff, look: "number" },
  { head: "margin", value: (d) => d.margin, look: "number",
    about: "distance between value and cutoff; 0 and continued: the trial's own value is the cutoff" },
  { head: "compared with", value: (d) => (d.rung === null ? null : d.recorded), look: "number",
    about: "number of other trials that had a value at the rung by then" },
  { head: "reason", value: (d) => d.reason, look: "text" },
];

/** @param {unknown} value */
const size = (value) => (typeof value === "number" ? bytes(value) : "");
export const USAGE = /^(cpu_|rss_|gpu_|train_s$|validate_s$|.*_per_s$|micro_batch_size$)/; // metrics that most users need rarely

const TAKEN = ["trial", "status", "best epoch", "epochs", "duration", "attempts", "rung", "reason"]; // headings that a metric cannot have

/** The columns of every search; the values' names are those of trials.csv. Each other metric has its value in the trial's
 * best report and its last one.
 * @param {string} metric @param {string[]} others @returns {Column<TrialRow>[]} */
const common = (metric, others) => [
  { head: "trial", value: (t) => t.trial, link },
  { head: "status", value: (t) => t.status, look: (t) => t.status },
  { head: `best_${metric}`, value: (t) => t.best, look: "number" },
  { head: "best epoch", value: (t) => t.best_epoch, look: "number" },
  { head: `last_${metric}`, value: (t) => t.last, look: "number" },
  ...others.flatMap((name) => [name, `last_${name}`].map((head, i) => ({ head: [...TAKEN, `best_${metric}`, `last_${metric}`, ...(i ? others : [])].includes(head) ? `metric ${head}` : head, look: "number", rare: i > 0 || USAGE.test(name),
    value: (/** @type {TrialRow} */ t) => t.metrics[name]?.[i] ?? null, ...(name.endsWith("_bytes") && { text: (/** @type {TrialRow} */ t) => size(t.metrics[name]?.[i]) }), about: i ? `the last ${name}` : `${name} at the trial's best epoch` }))),
  { head: "epochs", value: (t) => t.epochs, look: "number" },
  { head: "duration", text: (t) => trialDuration(t.seconds), value: (t) => t.seconds, look: "number",
    about: "on workers, of all attempts; in seconds for a filter and in a saved file" },
  { head: "attempts", value: (t) => t.attempts, look: "number", rare: true, about: "1, and one more after each failure" },
  { head: "rung", value: (t) => t.rung, look: "number", about: "the rung at which the trial was pruned" },
];
/** @type {Column<TrialRow>} */
const REASON = { head: "reason", look: "text",
  value: (t) => [t.reason, ...t.errors.filter((e) => !t.reason.includes(e))].filter(Boolean).join("; ") };

/** @type {WeakMap<object, Map<string, unknown>>} */
const flattened = new WeakMap();
/** Returns a trial's parameters by name: `opt/momentum` if they are nested.
 * @param {TrialRow} row */
function parametersOf(row) {
  let known = flattened.get(row);
  if (!known) flattened.set(row, known = new Map(flat(row.config)));
  return known;
}

/** Returns the columns for these trials: each parameter that one of them has is a column of its own.
 * @param {TrialRow[]} rows @param {string[]} metrics the searched one first @returns {Column<TrialRow>[]} */
export function trialColumns(rows, [metric, ...others]) {
  /** @type {Map<string, boolean>} Name -> whether all values are numbers. */
  const names = new Map();
  for (const row of rows) {
    for (const [name, value] of parametersOf(row)) {
      if (names.has(name) || names.size <= MOST_PARAMETERS) {
        names.set(name, typeof value === "number" && (names.get(name) ?? true));
      }
    }
  }
  const before = common(metric, others), own = new Set([...before, REASON].map(({ head }) => head));
  const shown = [...names].slice(0, MOST_PARAMETERS);
  /** @type {Column<TrialRow>[]} */
  const columns = shown.map(([name, isNumber]) => ({
    head: own.has(name) ? `parameter ${name}` : name, look: isNumber ? "number" : "value",
    value: (row) => parametersOf(row).get(name),
    text: (row) => (parametersOf(row).get(name) === null ? "null" : parametersOf(row).get(name)),
  }));
  if (names.size > MOST_PARAMETERS) {
    const taken = new Set(shown.map(([name]) => name));
    columns.push({ head: "other parameters", look: "value", value: (row) =>
      [...parametersOf(row)].filter(([name]) => !taken.has(name)).map(([name, value]) => `${name} ${shownAs(value)}`).join(", ") });
  }
  return [...before, ...columns, REASON];
}

const OUTCOMES = { stopped: "pruned", ended: "as recorded", unknown: "unknown" };
/** @type {Column<Fate>[]} */
export const FATES = [
  { head: "trial", value: (f) => f.trial, link },
  { head: "outcome", value: (f) => OUTCOMES[f.outcome], about: "unknown: the trial would train beyond its recorded epochs" },
  { head: "epochs", value: (f) => f.epochs, look: "number" },
  { head: "epochs recorded", value: (f) => f.recorded, look: "number" },
  { head: "epochs saved", value: (f) => (f.outcome === "unknown" ? null : f.recorded - f.epochs), look: "number" },
  { head: "rung", value: (f) => f.rung, look: "number" },
  { head: "value", value: (f) => f.value, look: "number" },
  { head: "cutoff", value: (f) => f.cutoff, look: "number" },
];

/** @type {Column<AuditedTrial>[]} */
export const AUDITED = [
  { head: "trial", value: (t) => t.trial, link },
  { head: "pruned at epoch", value: (t) => t.stopped, look: "number" },
  { head: "best value", value: (t) => t.best, look: "number" },
  { head: "best epoch", value: (t) => t.best_epoch, look: "number" },
  { head: "false prune", value: (t) => (t.beats ? "yes" : "no"), look: (t) => (t.beats ? "failed" : ""),
    about: "whether its best value beats that of the best trial" },
  { head: "duration", text: (t) => trialDuration(t.seconds), value: (t) => t.seconds, look: "number" },
  { head: "note", value: (t) => t.differs, look: "text" },
];

/** @type {Column<import("./api.js").FrontRow>[]} */
export const FRONT = [
  { head: "point", value: (p) => p.point, look: "number", about: "as load_best(..., point=N) numbers them; 0 is the knee" },
  { head: "trial", value: (p) => p.trial, link },
  { head: "epoch", value: (p) => p.epoch, look: "number" },
  { head: "metrics", text: (p) => parameters(p.values), look: "value" },
  { head: "parameters", text: (p) => parameters(p.config), look: "text" },
];

/** @type {Column<import("./api.js").ConfirmedSetting>[]} */
export const CONFIRMED = [
  { head: "trial", value: (s) => s.trial, link, about: "the search's trial with this setting" },
  { head: "mean", value: (s) => s.mean, look: "number", about: "over the other seeds" },
  { head: "95 % from", value: (s) => s.low, look: "number" },
  { head: "95 % to", value: (s) => s.high, look: "number" },
  { head: "probability of the best mean", value: (s) => s.best_probability, look: "number" },
  { head: "value in the search", value: (s) => s.single, look: "number" },
  { head: "luck", value: (s) => s.luck, look: "number", about: "how much better the value in the search is than the mean" },
  { head: "values", text: (s) => s.values.map((value) => (value === null ? "none" : number(value))).join(", "), look: "value" },
  { head: "parameters", text: (s) => parameters(s.config), look: "text" },
];

/** @type {Column<import("./api.js").CostRow>[]} */
export const COSTS = [
  { head: "parameter", value: (c) => c.parameter }, { head: "value", value: (c) => c.value, about: "a value, or the range of a quarter of the trials" },
  { head: "trials", value: (c) => c.trials, look: "number" }, { head: "epochs", value: (c) => c.epochs, look: "number" },
  { head: "duration", text: (c) => duration(c.seconds), value: (c) => c.seconds, look: "number", about: "on workers; in seconds for a filter and in a saved file" },
  { head: "seconds an epoch", value: (c) => c.epoch_s, look: "number" },
  { head: "CPU-hours", value: (c) => c.cpu_hours, look: "number" }, { head: "GPU-hours", value: (c) => c.gpu_hours, look: "number" },
  { head: "epochs saved", value: (c) => c.saved, look: "number", about: "by pruning, an estimate" },
  { head: "share of the time, %", value: (c) => c.share, look: "number" },
];
