// @ts-check
// The comparison of several experiments (#?compare=NAME&compare=NAME), and the checkboxes of the list that lead to it.

import { at, duration, el, number, offer, set, tell } from "./dom.js";
import { fill, resetTables } from "./grid.js";
import { redraw } from "./linked.js";
import { drawInto } from "./look.js";
import { session } from "./control.js";
import { BUSY, get } from "./service.js";

/** @typedef {import("./api.js").Comparison} Comparison */
/** @typedef {import("./api.js").ComparedRow} ComparedRow */
/** @typedef {import("./api.js").DifferenceRow} DifferenceRow */
/** @template Row @typedef {import("./grid.js").Column<Row>} Column */

const MOST = 25; // experiments in one comparison: the service refuses more
const UPDATE_MS = 3000; // between two loads at least, while one of the searches runs
const LONGEST_MS = 30000; // between two loads at most
const READING_MS = 20; // between two requests while the service reads experiments for the first time: each reads a part
const FIGURES = ["epochs", "seconds", "trials", "values"];
/** @type {Record<string, string>} Plotly's dashes as SVG has them. */
const STROKES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4" };

// --- the checkboxes of the list ---------------------------------------------------------------------------------------

/** @type {Set<string>} */
export const ticked = new Set();
/** The list's column of checkboxes. */
export const TICKS = {
  /** @param {{name: string}} row */
  has: (row) => ticked.has(row.name),
  /** @param {{name: string}} row */
  about: (row) => `compare ${row.name}`,
  /** @param {{name: string}} row @param {boolean} is */
  set: (row, is) => {
    ticked[is ? "add" : "delete"](row.name);
    showTicks();
  },
};

/** Shows what can be done with the experiments that are ticked: the link to their comparison, and all actions. */
export function showTicks() {
  const line = at("compare-ticked"), count = ticked.size;
  at("bulk").hidden = !session.isSignedIn || !ticked.size;
  const text = count < 2 ? "Tick two or more experiments to compare them." : count > MOST
    ? `${count} experiments are ticked; at most ${MOST} can be compared at once.` : "";
  if (text) return set(line, text);
  line.replaceChildren(el("a", { href: linkTo({ names: [...ticked] }) }, `Compare ${count} experiments`));
}

// --- the address ------------------------------------------------------------------------------------------------------

/** Whether the page's address is that of a comparison. */
export const comparing = () => location.hash.startsWith("#?compare=");

/** @returns {{names: string[], group: string, values: string}} */
function asked() {
  const query = new URLSearchParams(location.hash.slice(2));
  return { names: [...new Set(query.getAll("compare"))], group: query.get("group") ?? "", values: query.get("values") ?? "" };
}

/** @param {{names: string[], group?: string, values?: string}} choice */
function linkTo({ names, group = "", values = "" }) {
  const query = new URLSearchParams(names.map((name) => ["compare", name]));
  if (group) query.set("group", group);
  if (values) query.set("values", values);
  return `#?${query}`;
}

// --- the comparison ---------------------------------------------------------------------------------------------------

/** @type {Comparison | null} */
let loaded = null;
let drawnNames = ""; // the experiments that the page shows; the user's choices belong to them
/** @type {Set<string>} The experiments that the user has hidden in the figures. */
const hidden = new Set();
/** @type {number | undefined} */
let timer;
let turns = 0; // calls of showComparison: a later one takes the place of an earlier one

/** Loads the comparison that the address names, shows it, and keeps it up to date while a search runs. */
export async function showComparison() {
  clearTimeout(timer);
  const address = location.hash, { names, group, values } = asked(), turn = ++turns, began = performance.now();
  if (drawnNames !== String(names)) {
    drawnNames = String(names);
    hidden.clear();
    resetTables();
    loaded = null;
  }
  set(at("where"), `comparison of ${names.length} experiments`);
  document.title = "compare: tuner";
  const query = new URLSearchParams(names.map((name) => ["name", name]));
  for (const [name, value] of Object.entries({ group, values })) if (value) query.set(name, value);
  let pause = UPDATE_MS;
  try {
    /** @type {Comparison} */
    const comparison = await get(`/api/compare?${query}`);
    if (turn !== turns || location.hash !== address) return;
    draw(loaded = comparison);
    const states = comparison.experiments.map((row) => row.state);
    if (states.includes("reading")) pause = READING_MS;
    // 20 times the last load, to spare the searches
    else pause = states.some((state) => BUSY.includes(state)) ? Math.max(UPDATE_MS, Math.min(LONGEST_MS, 20 * (performance.now() - began))) : 0;
  } finally {
    if (turn === turns && location.hash === address && pause) {
      timer = setTimeout(() => comparing() && !document.hidden && showComparison().catch(() => {}), pause);
    }
  }
}

/** Draws the figures again, for example in other colours. */
function refreshComparison() {
  if (comparing() && loaded) draw(loaded);
}

/** @param {Comparison} comparison */
function draw(comparison) {
  const { experiments, groups, columns } = comparison;
  tell("compare-notice", notice(comparison));
  drawChoices(comparison);
  drawLegend(comparison);
  for (const name of FIGURES) drawFigure(comparison, name);
  at("compare-differences").hidden = !columns.length;
  fill(at("compare-costs"), COSTS, experiments);
  const everything = at("compare-same", HTMLInputElement).checked;
  for (const kind of /** @type {const} */ (["options", "parameters"])) {
    const rows = comparison[kind].filter((row) => row.differs || everything);
    /** @type {HTMLElement} */ (at(`compare-${kind}`).parentNode).hidden = !rows.length;
    fill(at(`compare-${kind}`), differenceColumns(columns), rows);
    tell(`compare-${kind}-equal`, rows.length ? "" : columns.length > 1 ? `All have the same ${kind}.` : "Nothing to compare with.");
  }
  at("compare-choices").hidden = at("compare-legend").hidden = !groups.length;
}

/** Says what is not in the figures, and why.
 * @param {Comparison} comparison */
function notice({ experiments, groups, group, left_out }) {
  const wrong = experiments.filter((row) => row.error && row.state !== "reading");
  const reading = experiments.filter((row) => row.state === "reading");
  const other = groups.length > 1 && `The experiments have ${groups.length} different metrics or modes, whose values cannot be `
    + `compared. The figures show ${title(groups[group])}: ${groups[group].names.join(", ")}.`;
  return [other,
    wrong.length && `Not compared: ${wrong.map((row) => row.name).join(", ")}; the table says why.`,
    reading.length && `Being read: ${reading.map((row) => row.name).join(", ")}.`,
    left_out && `${left_out} rows did not fit into the response.`].filter(Boolean).join(" ");
}

/** @param {import("./api.js").MetricGroup} group */
const title = (group) => `${group.metric} (${group.mode})`;

/** @param {Comparison} comparison */
function drawChoices({ groups, group, value_choices, values }) {
  const metric = groups[group]?.metric ?? "";
  at("compare-group-choice").hidden = groups.length < 2;
  offer("compare-group", groups.map((each, i) => [String(i), title(each)]), String(group));
  offer("compare-by", value_choices.map((choice) => [choice, titleOf(choice, metric)]), values);
}

/** @param {string} choice @param {string} metric */
function titleOf(choice, metric) {
  return ["best", "last"].includes(choice) ? `the ${choice} ${metric} of each trial` : `the ${metric} at epoch ${choice}`;
}

/** Draws one button for each experiment in the figures; it hides and shows its lines.
 * @param {Comparison} comparison */
function drawLegend({ experiments, groups, group }) {
  const rows = experiments.filter((row) => groups[group]?.names.includes(row.name));
  const wanted = JSON.stringify(rows.map(({ name, color, dash }) => [name, color, dash, hidden.has(name)])), legend = at("compare-legend");
  if (legend.dataset.drawn === wanted) return;
  legend.dataset.drawn = wanted;
  legend.replaceChildren(...rows.map(({ name, color, dash }) => {
    const button = el("button", { type: "button", ariaPressed: String(!hidden.has(name)), title: "show or hide in all figures", onclick: () => {
      hidden[hidden.has(name) ? "delete" : "add"](name);
      button.ariaPressed = String(!hidden.has(name));
      redraw(FIGURES.map((figure) => at(`compare-${figure}`)));
    } }, sample(color, STROKES[dash] ?? ""), name);
    return el("li", {}, button);
  }));
}

/** Returns a picture of a line.
 * @param {string} color @param {string} dashes */
function sample(color, dashes) {
  const [picture, line] = ["svg", "line"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
  for (const [name, value] of Object.entries({ width: 34, height: 10, "aria-hidden": true })) picture.setAttribute(name, String(value));
  for (const [name, value] of Object.entries({ x1: 0, y1: 5, x2: 34, y2: 5, "stroke-width": 3, stroke: color, "stroke-dasharray": dashes })) line.setAttribute(name, String(value));
  picture.append(line);
  return picture;
}

/** @param {Comparison} comparison @param {string} name */
function drawFigure({ figures, groups, group }, name) {
  const node = at(`compare-${name}`), figure = figures[name];
  node.closest("section")?.toggleAttribute("hidden", !figure);
  if (!figure) return;
  const side = name === "values" ? "xaxis" : "yaxis", isLog = at("compare-log", HTMLInputElement).checked;
  drawInto(node, figure, `${drawnNames} ${group} ${title(groups[group])}`, (layout, data) => {
    layout.showlegend = false;
    layout.meta = { ...layout.meta, legend: true };
    for (const trace of data) trace.visible = !hidden.has(trace.meta);
    if (!isLog || !layout[side]) return;
    const range = layout[side].range; // of a clipped axis
    Object.assign(layout[side], { type: "log", uirevision: "log", range: range?.[0] > 0 ? range.map(Math.log10) : undefined });
  });
  const plot = /** @type {any} */ (node);
  if (plot.opensTrials) return;
  plot.opensTrials = true;
  plot.on?.("plotly_click", (/** @type {{points: {customdata?: string, data: {meta: string}}[]}} */ { points }) => {
    const [{ customdata, data }] = points;
    location.hash = `#${encodeURIComponent(data.meta)}${customdata ? `/${encodeURIComponent(customdata)}` : ""}`;
  });
}

// --- the tables -------------------------------------------------------------------------------------------------------

/** @type {Column<ComparedRow>[]} */
const COSTS = [
  { head: "name", text: (e) => e.name, link: (e) => `#${encodeURIComponent(e.name)}` },
  { head: "state", text: (e) => (e.state === "damaged" ? "unreadable" : e.state), look: (e) => (e.error && e.state !== "reading" ? "failed" : e.state) },
  { head: "space, searcher, scheduler", look: "text",
    text: (e) => e.error || [...new Set([e.space, e.searcher, e.scheduler])].filter(Boolean).join(", ") },
  { head: "metric", text: (e) => (e.metric ? `${e.metric} (${e.mode})` : "") },
  { head: "best value", value: (e) => e.best, look: "number" },
  { head: "best trial", value: (e) => e.trial, text: (e) => e.trial || "none",
    link: (e) => `#${encodeURIComponent(e.name)}${e.trial ? `/${encodeURIComponent(e.trial)}` : ""}` },
  { head: "found after epochs", value: (e) => e.best_epochs, look: "number", about: "epochs of all trials together" },
  { head: "found after time", value: (e) => e.best_s, text: (e) => (e.best_s === null ? "" : duration(e.best_s)), look: "number",
    about: "in seconds for a filter and in a saved file" },
  { head: "found after trials", value: (e) => e.best_trials, look: "number", about: "trials that had started" },
  { head: "trials", value: (e) => counted(e, e.trials), look: "number" },
  { head: "completed", value: (e) => counted(e, e.completed), look: "number" },
  { head: "pruned", value: (e) => counted(e, e.pruned), look: "number" },
  { head: "failed", value: (e) => counted(e, e.failed), look: "number" },
  { head: "epochs", value: (e) => counted(e, e.epochs), look: "number",
    about: "of all trials together, with those that were trained again" },
  { head: "duration", value: (e) => counted(e, e.took_s), text: (e) => (e.error ? "" : duration(e.took_s)), look: "number",
    about: "of the search, without pauses; in seconds for a filter and in a saved file" },
  { head: "time on workers", value: (e) => counted(e, e.worker_s), text: (e) => (e.error ? "" : duration(e.worker_s)), look: "number",
    about: "of all trials together; in seconds for a filter and in a saved file" },
];

/** @param {ComparedRow} row @param {number} count */
const counted = (row, count) => (row.error ? null : count);

/** @param {string[]} names @returns {Column<DifferenceRow>[]} */
const differenceColumns = (names) => [
  { head: "name", value: (row) => row.name },
  ...names.map((name, i) => ({ head: name === "name" ? "experiment name" : name, look: "value",
    value: (/** @type {DifferenceRow} */ row) => row.values[i], text: (/** @type {DifferenceRow} */ row) => row.values[i] || "none" })),
];

// --- the user's choices -----------------------------------------------------------------------------------------------

/** @param {string} name @param {string} id */
const choose = (name, id) => at(id).addEventListener("change", () => {
  const choice = asked();
  location.hash = linkTo({ ...choice, [name]: at(id, HTMLSelectElement).value, ...(name === "group" && { values: "" }) });
});
choose("group", "compare-group");
choose("values", "compare-by");
for (const id of ["compare-outliers", "compare-log", "compare-same"]) at(id).addEventListener("change", refreshComparison);
at("compare-copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(location.href);
    set(at("compare-copied"), `copied; it shows ${number(asked().names.length)} experiments`);
  } catch {
    set(at("compare-copied"), "the browser does not allow it; copy the page's address");
  }
});
