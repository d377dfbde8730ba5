// @ts-check
// The columns of the page's tables: the service describes most of them, with headings and tooltips.

import { addressOfTrial } from "./address.js";
import { bytes, duration, flat, number, parameters, shownAs, trialDuration } from "./dom.js";

/** @typedef {import("./api.js").Summary} Summary */
/** @typedef {import("./api.js").TrialRow} TrialRow */
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

/** @param {unknown} value */
const size = (value) => (typeof value === "number" ? bytes(value) : "");
export const USAGE = /^(cpu_|rss_|gpu_|train_s$|validate_s$|.*_per_s$|micro_batch_size$)/; // metrics that most users need rarely

/** How the page shows the looks of the service's columns that are no CSS class.
 * @type {{[look: string]: (name: string) => object}} */
const LOOKS = {
  trial: () => ({ look: "", link }),
  status: (name) => ({ look: (/** @type {any} */ row) => row[name] }),
  duration: (name) => ({ look: "number", text: (/** @type {any} */ row) => trialDuration(row[name]) }),
  parameters: (name) => ({ look: "text", value: (/** @type {any} */ row) => parameters(row[name]) }),
  flag: (name) => ({ value: (/** @type {any} */ row) => (row[name] ? "yes" : "no"), look: (/** @type {any} */ row) => (row[name] ? "failed" : "") }),
  list: (name) => ({ look: "value", value: (/** @type {any} */ row) => row[name].map((/** @type {unknown} */ each) => number(each ?? "none")).join(", ") }),
};

/** Returns a table's columns as the service describes them.
 * @param {import("./api.js").Column[]} described @returns {Column<any>[]} */
export const columnsOf = (described, metric = "") => described.map(({ name, head, look, ...more }) =>
  ({ ...more, head: head.replace("{metric}", () => metric), look, value: (row) => row[name], ...LOOKS[look]?.(name) }));

/** Returns the columns of the other metrics: each in the trial's best report, and its last value.
 * @param {string[]} names @param {Set<string>} taken headings of other columns @returns {Column<TrialRow>[]} */
const ofMetrics = (names, taken) => names.flatMap((name) => [name, `last_${name}`].map((head, i) => ({
  head: taken.has(head) || (i && names.includes(head)) ? `metric ${head}` : head, look: "number", rare: i > 0 || USAGE.test(name),
  value: (/** @type {TrialRow} */ t) => t.metrics[name]?.[i] ?? null, about: i ? `the last ${name}` : `${name} at the trial's best epoch`,
  ...(name.endsWith("_bytes") && { text: (/** @type {TrialRow} */ t) => size(t.metrics[name]?.[i]) }) })));

/** @type {WeakMap<object, Map<string, unknown>>} */
const flattened = new WeakMap();
/** Returns a trial's parameters by name: `opt/momentum` if they are nested.
 * @param {TrialRow} row */
function parametersOf(row) {
  let known = flattened.get(row);
  if (!known) flattened.set(row, known = new Map(flat(row.config)));
  return known;
}

/** Returns the columns for these trials: each metric and parameter that one of them has is a column of its own.
 * @param {import("./api.js").Column[]} described @param {TrialRow[]} rows
 * @param {string[]} metrics the searched one first @returns {Column<TrialRow>[]} */
export function trialColumns(described, rows, [metric, ...others]) {
  const taken = new Set(columnsOf(described, metric).map(({ head }) => head)), metrics = ofMetrics(others, taken);
  for (const { head } of metrics) taken.add(head);
  return described.flatMap((each) => (each.look === "metrics" ? metrics
    : each.look === "parameters" ? ofParameters(rows, taken) : columnsOf([each], metric)));
}

/** @param {TrialRow[]} rows @param {Set<string>} taken headings of other columns @returns {Column<TrialRow>[]} */
function ofParameters(rows, taken) {
  /** @type {Map<string, boolean>} Name -> whether all values are numbers. */
  const names = new Map();
  for (const row of rows) {
    for (const [name, value] of parametersOf(row)) {
      if (names.has(name) || names.size <= MOST_PARAMETERS) {
        names.set(name, typeof value === "number" && (names.get(name) ?? true));
      }
    }
  }
  const shown = [...names].slice(0, MOST_PARAMETERS);
  /** @type {Column<TrialRow>[]} */
  const columns = shown.map(([name, isNumber]) => ({
    head: taken.has(name) ? `parameter ${name}` : name, look: isNumber ? "number" : "value",
    value: (row) => parametersOf(row).get(name),
    text: (row) => (parametersOf(row).get(name) === null ? "null" : parametersOf(row).get(name)),
  }));
  if (names.size > MOST_PARAMETERS) {
    const own = new Set(shown.map(([name]) => name));
    columns.push({ head: "other parameters", look: "value", value: (row) =>
      [...parametersOf(row)].filter(([name]) => !own.has(name)).map(([name, value]) => `${name} ${shownAs(value)}`).join(", ") });
  }
  return columns;
}
