// @ts-check
// The comparison of several experiments (#?compare=NAME&compare=NAME), and the checkboxes of the list that lead to it.

import { at, duration, number, set } from "./dom.js";
import { fill, resetTables } from "./grid.js";
import { redraw } from "./linked.js";
import { drawInto } from "./look.js";
import { BUSY, get } from "./service.js";

/** @typedef {import("./api.js").Comparison} Comparison */
/** @typedef {import("./api.js").ComparedRow} ComparedRow */
/** @typedef {import("./api.js").DifferenceRow} DifferenceRow */
/** @template Row @typedef {import("./grid.js").Column<Row>} Column */

const MOST = 25; // experiments in one comparison: the service refuses more
const UPDATE_MS = 3000; // between two loads at least, while one of the searches runs
const LONGEST_MS = 30000; // between two loads at most
const READING_MS = 500; // between two requests at least, while the service reads experiments for the first time
const FIGURES = ["epochs", "seconds", "trials", "values"];
/** @type {Record<string, string>} Plotly's dashes as SVG has them. */
const STROKES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4" };

// --- the checkboxes of the list ---------------------------------------------------------------------------------------

/** @type {Set<string>} */
const ticked = new Set();
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

/** Shows the link to the comparison of the experiments that are ticked. */
export function showTicks() {
  const line = at("compare-ticked"), count = ticked.size;
  const text = count < 2 ? "Tick two or more experiments to compare them." : count > MOST
    ? `${count} experiments are ticked; at most ${MOST} can be compared at once.` : "";
  if (text) return set(line, text);
  const link = line.querySelector("a") ?? document.createElement("a");
  link.href = linkTo({ names: [...ticked] });
  set(link, `Compare ${count} experiments`);
  if (!link.parentNode) line.replaceChildren(link);
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
  const address = location.hash, { names, group, values } = asked();
  if (drawnNames !== String(names)) {
    drawnNames = String(names);
    hidden.clear();
    resetTables();
    loaded = null;
  }
  set(at("where"), `comparison of ${names.length} experiments`);
  document.title = "compare: tuner";
  const query = new URLSearchParams(names.map((name) => ["name", name]));
  if (group) query.set("group", group);
  if (values) query.set("values", values);
  const turn = ++turns;
  let began = 0;
  let pause = UPDATE_MS;
  try {
    /** @returns {Promise<Comparison>} */
    const ask = () => {
      began = performance.now();
      return get(`/api/compare?${query}`);
    };
    const isCurrent = () => turn === turns && location.hash === address;
    let comparison = await ask();
    while (isCurrent() && isReading(comparison)) {
      // The service reads on while the page draws.
      const next = Promise.all([ask(), new Promise((resolve) => setTimeout(resolve, READING_MS))]);
      next.catch(() => {}); // it is awaited below
      draw(loaded = comparison);
      [comparison] = await next;
    }
    if (!isCurrent()) return;
    draw(loaded = comparison);
    const states = comparison.experiments.map((row) => row.state);
    // 20 times the last load, to spare the searches
    if (states.some((state) => BUSY.includes(state))) pause = Math.max(UPDATE_MS, Math.min(LONGEST_MS, 20 * (performance.now() - began)));
    else pause = 0;
  } finally {
    if (turn === turns && location.hash === address && pause) {
      timer = setTimeout(() => comparing() && !document.hidden && showComparison().catch(() => {}), pause);
    }
  }
}

/** Whether the service has not read all experiments yet.
 * @param {Comparison} comparison */
const isReading = ({ experiments }) => experiments.some(({ state }) => state === "reading");

/** Draws the figures again, for example in other colours. */
export function refreshComparison() {
  if (comparing() && loaded) draw(loaded);
}

/** @param {Comparison} comparison */
function draw(comparison) {
  const { experiments, groups, columns } = comparison;
  set(at("compare-notice"), notice(comparison));
  at("compare-notice").hidden = !at("compare-notice").textContent;
  drawChoices(comparison);
  drawLegend(comparison);
  for (const name of FIGURES) drawFigure(comparison, name);
  fill(at("compare-costs", HTMLTableElement), COSTS, experiments);
  const everything = at("compare-same", HTMLInputElement).checked;
  for (const kind of /** @type {const} */ (["options", "parameters"])) {
    const rows = comparison[kind].filter((row) => row.differs || everything);
    fill(at(`compare-${kind}`, HTMLTableElement), differenceColumns(columns), rows);
    set(at(`compare-${kind}-equal`), columns.length > 1 ? `All have the same ${kind}.` : "Nothing to compare with.");
    at(`compare-${kind}-equal`).hidden = rows.length > 0;
    for (const part of document.querySelectorAll(`[data-table=compare-${kind}], .scroll:has(> #compare-${kind})`)) part.toggleAttribute("hidden", !rows.length);
  }
  at("compare-differences").hidden = !columns.length;
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
  offer("compare-by", value_choices.map((choice) => [choice, choice === "best" ? `the best ${metric} of each trial`
    : `the ${metric} at epoch ${choice}`]), values);
}

/** @param {string} id @param {string[][]} choices value and text of each @param {string} chosen */
function offer(id, choices, chosen) {
  const box = at(id, HTMLSelectElement);
  if (String([...box.options].map(({ value, text }) => [value, text])) !== String(choices)) {
    box.replaceChildren(...choices.map(([value, text]) => new Option(text, value)));
  }
  box.value = chosen;
}

/** Draws one button for each experiment in the figures; it hides and shows its lines.
 * @param {Comparison} comparison */
function drawLegend({ experiments, groups, group }) {
  const legend = at("compare-legend"), rows = experiments.filter((row) => groups[group]?.names.includes(row.name));
  while (legend.children.length > rows.length) legend.lastChild?.remove();
  rows.forEach((row, i) => {
    const button = legend.children[i]?.querySelector("button") ?? addButton(legend);
    const line = /** @type {SVGElement} */ (button.querySelector("line"));
    line.setAttribute("stroke", row.color);
    line.setAttribute("stroke-dasharray", STROKES[row.dash] ?? "");
    set(/** @type {Node} */ (button.lastChild), row.name);
    button.ariaPressed = String(!hidden.has(row.name));
    button.title = "show or hide in all figures";
    button.onclick = () => {
      hidden[hidden.has(row.name) ? "delete" : "add"](row.name);
      button.ariaPressed = String(!hidden.has(row.name));
      redraw(FIGURES.map((figure) => at(`compare-${figure}`)));
    };
  });
}

/** @param {HTMLElement} legend */
function addButton(legend) {
  const button = document.createElement("button"), space = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(space, "svg"), line = document.createElementNS(space, "line");
  button.type = "button";
  for (const [name, value] of Object.entries({ width: 34, height: 10, "aria-hidden": true })) picture.setAttribute(name, String(value));
  for (const [name, value] of Object.entries({ x1: 0, y1: 5, x2: 34, y2: 5, "stroke-width": 3 })) line.setAttribute(name, String(value));
  picture.append(line);
  button.append(picture, document.createElement("span"));
  legend.appendChild(document.createElement("li")).append(button);
  return button;
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
