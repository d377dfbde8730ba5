// @ts-check
// The list of experiments: its columns, filter and archive, kept up to date while it is shown.

import { ofAll } from "./answer.js";
import { TICKS, comparing, showTicks, ticked } from "./compare.js";
import { act } from "./control.js";
import { at, attempt, counted, duration, moment, number, set, tell } from "./dom.js";
import { BUSY, shown } from "./experiment.js";
import { fill, group } from "./grid.js";
import { get, pathOf, post } from "./service.js";
import { ending, isWithoutAnswer, state } from "./tables.js";

/** @typedef {import("./api.js").Summary} Summary */

const LIST_MS = 3000; // between two loads of the list while a search is under way, and else:
const QUIET_LIST_MS = 10000;
/** @type {number | undefined} */
let listTimer;
/** @type {Summary[]} */
let loaded = [];

/** A row's state, and for how long it has waited.
 * @param {Summary} e */
const stateText = (e) => (e.error ? "unreadable"
  : e.waits_since ? `${e.state}, ${duration(Math.max(0, Date.now() / 1000 - e.waits_since))}` : state(e));
/** @param {Summary} e */
const remark = (e) => [e.error || e.notes_error, e.state === "reading" ? e.notice : "", e.message, e.notes].filter(Boolean).join("; ");

/** @param {...string} statuses @returns {import("./grid.js").Column<Summary>[]} */
const withStatus = (...statuses) => statuses.map((head) => ({ head, value: (e) => e.counts[head] || null, look: "number", spare: true }));
/** @type {import("./grid.js").Column<Summary>[]} */
const EXPERIMENTS = [
  { head: "compare", tick: TICKS },
  { head: "name", value: (e) => e.name, link: (e) => `#${encodeURIComponent(e.name)}` },
  { head: "state", value: (e) => (e.error ? "unreadable" : ending(e)), text: stateText,
    look: (e) => (e.error || isWithoutAnswer(e) ? "failed" : e.state) },
  { head: "trials", value: (e) => (e.error ? null : e.ended), text: (e) => (e.error ? "" : ofAll(e)), look: "number", about: "that have ended, of all" },
  ...withStatus("running", "paused"),
  { head: "time left", value: (e) => e.left_s, text: (e) => (e.left_s === null ? "" : `about ${duration(e.left_s)}`), look: "number", spare: true,
    about: "by the pace so far; in seconds for a filter and in a saved file" },
  { head: "best", value: (e) => e.best?.value ?? null, look: "number", about: "the best value of the metric" },
  { head: "metric", value: (e) => e.metric },
  { head: "tag", value: (e) => e.tags, text: (e) => e.tags.join(", "), look: "tags", spare: true, about: "tag:baseline finds all with this tag" },
  { head: "notes", value: remark, look: "value", spare: true },
  { head: "space", value: (e) => e.space, about: "the Python file with the parameters and the training" },
  { head: "searcher", value: (e) => e.searcher, about: "how settings are proposed" },
  { head: "scheduler", value: (e) => e.scheduler, about: "which rule stops, pauses and resumes trials" },
  { head: "completed", value: (e) => e.counts.completed ?? null, look: "number", rare: true },
  { head: "pruned", value: (e) => e.counts.pruned ?? null, look: "number" }, ...withStatus("diverged", "failed"),
  { head: "epochs", value: (e) => (e.error ? null : e.epochs), look: "number", about: "epochs of all trials together" },
  { head: "started", value: (e) => e.started, text: (e) => moment(e.started) },
  { head: "duration", value: (e) => (e.error ? null : e.took_s), text: (e) => (e.error ? "" : duration(e.took_s)), look: "number",
    about: "in seconds for a filter and in a saved file" },
];

/** Loads the list and shows it; loads it again after a while, until the user opens an experiment. */
export async function showList() {
  clearTimeout(listTimer);
  let pause = QUIET_LIST_MS;
  try {
    if (document.hidden) return;
    /** @type {import("./api.js").Experiments} */
    const { results, experiments } = await get("/api/experiments");
    if (shown.now || comparing()) return; // the user opened another view meanwhile
    if (experiments.some((experiment) => BUSY.includes(experiment.state))) pause = LIST_MS;
    set(at("where"), results);
    loaded = experiments;
    drawList();
    const command = `python -m tuner.run --space cifar --results ${results}`;
    set(at("no-experiments"), `No experiments yet. Start one with:\n${command}`);
  } finally {
    clearTimeout(listTimer);
    if (!shown.now && !comparing()) listTimer = setTimeout(() => shown.now || comparing() || attempt(showList), pause);
  }
}

function drawList() {
  const archived = loaded.filter((each) => each.archived).length;
  const rows = at("show-archived", HTMLInputElement).checked ? loaded : loaded.filter((each) => !each.archived);
  for (const name of ticked) if (!rows.some((row) => row.name === name)) ticked.delete(name); // a row that is not shown
  at("ticked").hidden = at("experiments").hidden = !loaded.length;
  at("no-experiments").hidden = loaded.length > 0;
  fill(at("experiments"), EXPERIMENTS, rows);
  showTicks();
  set(at("num-archived"), `show ${number(archived)} archived`);
  at("archived-choice").hidden = !archived;
}

at("show-archived").addEventListener("change", drawList);
at("group-spaces").addEventListener("change", () => group(at("experiments"), at("group-spaces", HTMLInputElement).checked ? "space" : ""));

// --- all ticked experiments at once -----------------------------------------------------------------------------------

/** Sends a request about each ticked experiment, and says which were refused.
 * @param {string} part of the address @param {(e: Summary) => object} body */
function forTicked(part, body) {
  const names = [...ticked], status = at("bulk-status");
  return act(at("ticked", HTMLFormElement), status, `saving ${counted(names.length, "experiment")}`, async () => {
    /** @type {string[]} */
    const problems = [];
    for (const name of names) {
      const row = loaded.find((each) => each.name === name);
      if (row) await post(`${pathOf(name)}/${part}`, body(row)).catch((error) => {
        if (error.status === 401) throw error;
        problems.push(`${name}: ${error.message}`);
      });
    }
    await showList();
    if (problems.length) throw new Error(problems.join("; "));
  }, `saved ${counted(names.length, "experiment")}`);
}

/** @param {boolean} isAdded */
function tagTicked(isAdded) {
  const tag = at("bulk-tag", HTMLInputElement).value.trim();
  if (!tag) return tell("bulk-status", "type a tag first");
  forTicked("notes", ({ tags, notes }) => ({ notes, shown_notes: notes, shown_tags: tags,
    tags: isAdded ? [...new Set([...tags, tag])] : tags.filter((each) => each !== tag) }));
}

at("bulk-archive").addEventListener("click", () => forTicked("archive", () => ({ archived: true })));
at("bulk-show").addEventListener("click", () => forTicked("archive", () => ({ archived: false })));
at("bulk-remove").addEventListener("click", () => tagTicked(false));
at("ticked").addEventListener("submit", (event) => {
  event.preventDefault();
  tagTicked(true);
});
