// @ts-check
// The page's tables: their columns, headings and rows. Text from an experiment is set by textContent, never as HTML.

import { duration, moment, number, parameters, set } from "./dom.js";

/** @typedef {import("./api.js").Shown} Shown */
/** @typedef {import("./api.js").TrialRow} TrialRow */
/** @typedef {import("./api.js").RungRow} RungRow */
/** @typedef {import("./api.js").DecisionRow} DecisionRow */
/** @typedef {import("./api.js").Fate} Fate */
/** @typedef {import("./api.js").AuditedTrial} AuditedTrial */
/**
 * A column: its heading, the text of a row's cell, and how the cell looks. `look` is a CSS class, or a function of the
 * row that returns one; numbers are aligned to the right. A column with `link` shows links.
 *
 * @template Row
 * @typedef {object} Column
 * @property {string} head
 * @property {(row: Row) => unknown} text
 * @property {string | ((row: Row) => string)} [look]
 * @property {(row: Row) => string} [link]
 * @property {(row: Row) => number} [value] what the column is sorted by, if not its text
 * @property {string} [about] the heading's tooltip
 */

export const MOST_ROWS = 500; // shown at once; the filter searches all rows
export const ALL_ROWS = 10000; // the most that the service sends in one response

/** @param {string} experiment @param {string} trial */
const trialLink = (experiment, trial) => `#${encodeURIComponent(experiment)}/${encodeURIComponent(trial)}`;
/** @param {{trial: string}} row */
const link = (row) => trialLink(location.hash.slice(1).split("/").map(decodeURIComponent)[0], row.trial);

/** Whether the search has ended, and its request was wrong or it has no result.
 * @param {Shown} summary */
const isWithoutAnswer = ({ state, outcome }) =>
  ["finished", "failed"].includes(state) && ["refused", "failed"].includes(outcome);

/** @param {Shown} summary */
export function state(summary) {
  if (isWithoutAnswer(summary)) return summary.outcome;
  const silent = Date.now() / 1000 - (summary.updated ?? 0);
  return summary.state === "running" && silent > 600 ? `running? no event for ${duration(silent)}` : summary.state;
}

/** @type {Column<Shown>[]} */
export const EXPERIMENTS = [
  { head: "name", text: (e) => e.name, link: (e) => `#${encodeURIComponent(e.name)}` },
  { head: "space, searcher, scheduler", look: "text",
    text: (e) => e.error || [e.space, ...rules(e)].filter(Boolean).join(", ") || e.notice },
  { head: "state", text: (e) => (e.error ? "unreadable" : state(e)),
    look: (e) => (e.error || isWithoutAnswer(e) ? "failed" : e.state) },
  { head: "completed", text: (e) => e.counts.completed, look: "number" },
  { head: "pruned", text: (e) => e.counts.pruned, look: "number" },
  { head: "running", text: (e) => e.counts.running, look: "number" },
  { head: "failed", text: (e) => e.counts.failed, look: "number" },
  { head: "best value", text: (e) => (e.best ? `${e.metric} ${number(e.best.value)}` : e.error ? "" : "none") },
  { head: "started", text: (e) => moment(e.started) },
  { head: "duration", text: (e) => (e.error ? "" : duration(e.took_s)) },
];

/** Returns searcher and scheduler; only one of them if both are equal, for example "not recorded".
 * @param {Shown} e */
export const rules = (e) => [...new Set([e.searcher, e.scheduler])];

/** @type {Column<RungRow>[]} */
export const RUNGS = [
  { head: "rung", text: (r) => r.rung, look: "number", about: "epochs at which the scheduler compares trials" },
  { head: "bracket", text: (r) => r.bracket, look: "number" },
  { head: "band", text: (r) => r.band, look: "number", about: "hyperband and bohb have several brackets in each band" },
  { head: "reached", text: (r) => r.came, look: "number", about: "trials that reached the rung" },
  { head: "promoted", text: (r) => r.went_on, look: "number" },
  { head: "pruned", text: (r) => r.stopped, look: "number" },
  { head: "paused", text: (r) => r.waiting, look: "number" },
  { head: "best value", text: (r) => number(r.best), look: "number" },
  { head: "last cutoff", text: (r) => number(r.cutoff_then), look: "number",
    about: "the cutoff when the last trial was compared" },
  { head: "current cutoff", text: (r) => number(r.cutoff_now), look: "number",
    about: "the cutoff over all trials that reached the rung" },
  { head: "pass current cutoff", text: (r) => r.would_pass_now, look: "number",
    about: "trials whose value at the rung is at least as good as the current cutoff" },
];

/** @type {Column<DecisionRow>[]} */
export const DECISIONS = [
  { head: "trial", text: (d) => d.trial, link },
  { head: "action", text: (d) => d.action, look: (d) => d.action },
  { head: "epoch", text: (d) => d.epoch, look: "number" },
  { head: "rung", text: (d) => d.rung, look: "number" },
  { head: "bracket", text: (d) => d.bracket, look: "number" },
  { head: "band", text: (d) => d.band, look: "number" },
  { head: "value", text: (d) => number(d.value), look: "number" },
  { head: "cutoff", text: (d) => number(d.cutoff), look: "number" },
  { head: "margin", text: (d) => number(d.margin), look: "number", about: "distance between value and cutoff" },
  { head: "trials at rung", text: (d) => (d.rung === null ? "" : d.recorded + 1), look: "number",
    about: "trials that had reached the rung by then, this one included" },
  { head: "reason", text: (d) => d.reason, look: "text" },
];

/** @type {Column<TrialRow>[]} */
export const TRIALS = [
  { head: "trial", text: (t) => t.trial, link },
  { head: "status", text: (t) => t.status, look: (t) => t.status },
  { head: "best value", text: (t) => number(t.best), look: "number" },
  { head: "best epoch", text: (t) => t.best_epoch, look: "number" },
  { head: "last value", text: (t) => number(t.last), look: "number" },
  { head: "epochs", text: (t) => t.epochs, look: "number" },
  { head: "duration", text: (t) => duration(t.seconds), value: (t) => t.seconds, look: "number" },
  { head: "parameters", text: (t) => parameters(t.config), look: "text" },
  { head: "reason", look: "text",
    text: (t) => [t.reason, ...t.errors.filter((e) => !t.reason.includes(e))].filter(Boolean).join("; ") },
];

const OUTCOMES = { stopped: "pruned", ended: "as recorded", unknown: "unknown" };
/** @type {Column<Fate>[]} */
export const FATES = [
  { head: "trial", text: (f) => f.trial, link },
  { head: "outcome", text: (f) => OUTCOMES[f.outcome], about: "unknown: the trial would train beyond its recorded epochs" },
  { head: "epochs", text: (f) => f.epochs, look: "number" },
  { head: "epochs recorded", text: (f) => f.recorded, look: "number" },
  { head: "epochs saved", text: (f) => (f.outcome === "unknown" ? "?" : f.recorded - f.epochs), look: "number" },
  { head: "rung", text: (f) => number(f.rung), look: "number" },
  { head: "value", text: (f) => number(f.value), look: "number" },
  { head: "cutoff", text: (f) => number(f.cutoff), look: "number" },
];

/** @type {Column<AuditedTrial>[]} */
export const AUDITED = [
  { head: "trial", text: (t) => t.trial, link },
  { head: "pruned at epoch", text: (t) => t.stopped, look: "number" },
  { head: "best value", text: (t) => number(t.best), look: "number" },
  { head: "best epoch", text: (t) => t.best_epoch, look: "number" },
  { head: "false prune", text: (t) => (t.beats ? "yes" : "no"), look: (t) => (t.beats ? "stop" : ""),
    about: "whether its best value beats that of the best trial" },
  { head: "duration", text: (t) => duration(t.seconds), look: "number" },
  { head: "note", text: (t) => t.differs, look: "text" },
];

// --- drawing ---------------------------------------------------------------------------------------------------------

/** @typedef {{head: string, descending: boolean}} Order */
/** The tables that the user can sort: their order, null if none was chosen, and the function that draws them again.
 * @type {WeakMap<HTMLTableElement, {order: Order | null, redraw: () => void}>} */
const sortable = new WeakMap();

/**
 * Shows rows in a table. Cells that have not changed are not replaced.
 *
 * @template Row
 * @param {HTMLTableElement} table
 * @param {Column<Row>[]} columns
 * @param {Row[]} rows
 */
export function fill(table, columns, rows) {
  if (!table.tHead) addHead(table, columns);
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, i) => {
    const line = body.rows[i] ?? body.insertRow();
    columns.forEach(({ text, look, link }, j) => {
      const cell = line.cells[j] ?? line.insertCell();
      if (link) {
        const target = /** @type {HTMLAnchorElement} */ (cell.firstChild ?? cell.appendChild(document.createElement("a")));
        set(target, text(row));
        target.href = link(row);
      } else {
        set(cell, text(row));
        cell.className = (typeof look === "function" ? look(row) : look) ?? "";
      }
    });
  });
}

/**
 * @template Row
 * @param {HTMLTableElement} table
 * @param {Column<Row>[]} columns
 */
function addHead(table, columns) {
  const line = table.createTHead().insertRow();
  for (const { head, look, about } of columns) {
    const cell = line.appendChild(document.createElement("th"));
    cell.scope = "col";
    cell.title = about ?? "";
    if (look === "number") cell.className = look;
    if (sortable.has(table)) cell.appendChild(sorter(table, head)); else cell.textContent = head;
  }
  table.createTBody();
}

/**
 * Returns a column heading that sorts on click: ascending, descending, then the original order.
 *
 * @param {HTMLTableElement} table
 * @param {string} head
 */
function sorter(table, head) {
  const button = document.createElement("button");
  button.textContent = head;
  button.addEventListener("click", () => {
    const sorting = sortable.get(table);
    if (!sorting || !table.tHead) return;
    const last = sorting.order;
    sorting.order = last?.head !== head ? { head, descending: false } : last.descending ? null : { head, descending: true };
    for (const cell of table.tHead.rows[0].cells) {
      const own = sorting.order && cell.textContent === head;
      cell.ariaSort = own ? (sorting.order?.descending ? "descending" : "ascending") : null;
    }
    sorting.redraw();
  });
  return button;
}

/**
 * Returns the rows in the order that the user chose: numbers by value, texts by alphabet, empty cells last.
 *
 * @template Row
 * @param {Row[]} rows
 * @param {Column<Row>[]} columns
 * @param {Order | null | undefined} order
 */
function sorted(rows, columns, order) {
  const column = columns.find(({ head }) => head === order?.head);
  if (!order || !column) return rows;
  const sign = order.descending ? -1 : 1;
  /** @param {Row} row */
  const key = (row) => {
    const text = String((column.value ?? column.text)(row) ?? "");
    return text === "" || Number.isNaN(Number(text)) ? text : Number(text);
  };
  /** @param {string | number} a @param {string | number} b */
  const compare = (a, b) => Number(a === "") - Number(b === "") || sign * (typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
  return rows.map((row) => ({ key: key(row), row })).sort((a, b) => compare(a.key, b.key)).map(({ row }) => row);
}

/**
 * Shows the loaded rows that match the filter, sorted, and how many there are.
 *
 * @template Row
 * @param {HTMLTableElement} table
 * @param {Column<Row>[]} columns
 * @param {Row[]} rows the loaded rows
 * @param {number} total the number of all rows
 * @param {HTMLInputElement} box the filter
 * @param {HTMLElement} count
 */
export function filtered(table, columns, rows, total, box, count) {
  if (!sortable.has(table)) sortable.set(table, { order: null, redraw: () => box.dispatchEvent(new Event("input")) });
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  // The searched text includes the headings: "rung 4" matches the rows whose rung is 4.
  /** @param {Row} row */
  const searched = (row) => columns.map(({ head, text }) => `${head} ${text(row) ?? ""}`).join(" ").toLowerCase();
  const whole = words.join(" ");
  /** @param {string} text */
  const matches = (text) => text.includes(whole) || words.every((word) => text.includes(word));
  const found = whole ? rows.filter((row) => matches(searched(row))) : rows;
  fill(table, columns, sorted(found, columns, sortable.get(table)?.order).slice(0, MOST_ROWS));
  const shown = found.length > MOST_ROWS ? `, first ${MOST_ROWS} shown` : "";
  set(count, rows.length < total && !whole ? `first ${rows.length} of ${total}` : `${found.length} of ${total}${shown}`);
}
