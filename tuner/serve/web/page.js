// @ts-check
// One page, three views: the list of experiments (#), one experiment (#name), kept up to date by its journal, and a
// comparison of several.

import { readAddress, writePins } from "./address.js";
import { drawAnswer, drawProgress, unsaid } from "./answer.js";
import { comparing, showComparison } from "./compare.js";
import { showControl, showSession } from "./control.js";
import { drawCurveChoices, drawCurves } from "./curves.js";
import { at, attempt, offer, set, tell } from "./dom.js";
import { Experiment, FIGURES, isNear, shown } from "./experiment.js";
import { addFigureButtons } from "./download.js";
import { fill, resetTables, source } from "./grid.js";
import { drawCompared, drawInsight, showTrial } from "./insight.js";
import { showLabels, showUnreadable } from "./labels.js";
import { showList } from "./list.js";
import { redraw } from "./linked.js";
import { drawInto, emptyFigures, place } from "./look.js";
import { drawPinned } from "./pinned.js";
import { linkTables } from "./rows.js";
import { choice, open, setPins } from "./selection.js";
import { drawSelection } from "./selection_bar.js";
import { columnsOf, trialColumns } from "./tables.js";
import { openTab, showSection } from "./tabs.js";

/** @typedef {import("./api.js").Changes} Changes */

// --- one experiment --------------------------------------------------------------------------------------------------

/** @param {Changes} loaded @param {string[]} figures the figures that have changed */
function draw(loaded, figures) {
  const { summary, rungs, decisions, front, confirmed, metrics, columns } = loaded;
  set(at("name"), summary.name);
  drawAnswer(loaded);
  drawProgress(summary);
  showControl(summary);
  showLabels(summary);
  tell("notice", unsaid(loaded));
  set(at("resume"), summary.resume);
  at("resume-line").hidden = !summary.resume;
  set(at("retrain"), summary.retrain);
  at("retrain-line").hidden = !summary.retrain;
  at("rungs-section").hidden = !rungs.length;
  at("decisions-section").hidden = !decisions.length;
  at("trials-section").hidden = !loaded.num_trials;
  for (const name of FIGURES) at(`${name}-section`).hidden = !loaded.figures[name];
  fill(at("rungs"), columnsOf(columns.rungs), rungs);
  fill(at("decisions"), columnsOf(columns.decisions), decisions, loaded.num_decisions);
  fill(at("trials"), trialColumns(columns.trials, loaded.trials, [summary.metric, ...metrics.filter((name) => name !== summary.metric)]), loaded.trials, loaded.num_trials);
  fill(at("front-points"), columnsOf(columns.front), front);
  fill(at("confirmed-settings"), columnsOf(columns.confirmed), confirmed);
  drawChoices(loaded);
  drawCurveChoices(loaded);
  for (const name of figures) {
    undrawn.add(name);
    place(at(name), loaded.figures[name]);
  }
  drawFigures((name) => isNear(name));
  drawInsight(loaded);
  drawPinned(loaded);
}

/** @param {Changes} loaded */
function drawChoices({ value_choices, value_default, metrics, summary, figures }) {
  const [kind, metric] = (shown.now?.values ?? "").split(/:(.*)/s), chosen = kind || value_default;
  at("values-choice").hidden = !figures.parallel;
  offer("values-metric", metrics.map((name) => [name, name]), metric || summary.metric);
  const best = metric && metric !== summary.metric ? "at its best epoch" : "best";
  const choices = value_choices.includes(chosen) ? value_choices : [...value_choices, chosen];
  offer("values", choices.map((each) => [each, each === "best" ? best : isNaN(Number(each)) ? each : `at epoch ${each}`]), chosen);
}

/** Figures that are not drawn as they are loaded: they are far from the screen. Drawing all takes a second.
 * @type {Set<string>} */
const undrawn = new Set();

/** Draws the figures of a kind that have changed since they were drawn.
 * @param {(name: string) => boolean} isWanted */
function drawFigures(isWanted) {
  const loaded = shown.now?.loaded;
  for (const name of loaded ? [...undrawn].filter(isWanted) : []) {
    undrawn.delete(name);
    if (!loaded?.figures[name]) continue;
    if (name === "curves") drawCurves(loaded);
    else drawInto(at(name), loaded.figures[name], loaded.summary.name);
  }
}

// --- which view ------------------------------------------------------------------------------------------------------

async function route() {
  const hadComparison = !at("compare").hidden;
  at("compare").hidden = !comparing();
  if (comparing()) {
    if (!hadComparison) await show(null);
    at("trial", HTMLDialogElement).close();
    return attempt(showComparison);
  }
  const { name, trial, place: section, pins } = readAddress();
  openTab(name, section);
  if (shown.now?.name !== name || !shown.now?.loaded) await show(name);
  else draw(shown.now.loaded, []);
  if (pins && shown.now?.name === name) setPins(pins);
  if (shown.now) writePins(choice.now.pinned); // a link within the page does not name them
  const experiment = shown.now;
  if (!experiment || experiment.name !== name) return;
  experiment.trial = trial;
  if (trial && experiment.loaded) await attempt(() => showTrial(trial));
  if (!trial) at("trial", HTMLDialogElement).close();
  if (!section || trial) return;
  await experiment.rest; // a section without a figure is hidden
  if (shown.now === experiment) showSection(section);
}

const UNREADABLE = 422; // the status of an experiment whose files are damaged
let listAt = 0; // how far the list was scrolled when an experiment was opened

/** @param {string | null} name of the experiment; empty for the list, null for the comparison */
async function show(name) {
  if (!at("list").hidden) listAt = window.scrollY;
  shown.now?.close();
  shown.now = null;
  resetTables();
  emptyFigures();
  open(name ?? "");
  undrawn.clear();
  const experiment = shown.now = name ? new Experiment(name, draw, (text) => {
    if (at("live").textContent === "reconnecting" && text !== "reconnecting") showSession().catch(() => {}); // a new service knows no session
    set(at("live"), text);
  }) : null;
  document.title = name ? `${name}: tuner` : "tuner";
  set(at("live"), "");
  at("list").hidden = name !== "";
  at("damaged").hidden = true;
  if (!experiment) {
    at("one").hidden = true;
    if (name === null) return window.scrollTo(0, 0);
    window.scrollTo(0, listAt);
    return attempt(showList);
  }
  set(at("where"), name);
  at("one").hidden = false;
  window.scrollTo(0, 0);
  let status = 0;
  await attempt(async () => {
    await experiment.open().catch((error) => {
      status = error.status;
      throw error;
    });
    experiment.follow();
  });
  if (shown.now === experiment && status) showUnreadable(experiment.name, status === UNREADABLE);
  at("one").hidden = shown.now === experiment && !experiment.loaded;
}

source.name = () => shown.now?.name ?? (comparing() ? "compare" : "experiments");
source.kind = () => shown.now?.loaded?.summary.space ?? "";
source.all = async (table) => {
  if (table === "trials" || table === "decisions") await shown.now?.loadAll(table);
};

for (const id of ["values", "values-metric"]) {
  at(id).addEventListener("change", () => attempt(async () => {
    const kind = at("values", HTMLSelectElement).value, metric = at("values-metric", HTMLSelectElement).value;
    const loading = shown.now?.choose("values", metric === shown.now.loaded?.summary.metric ? kind : `${kind}:${metric}`);
    drawCompared();
    await loading;
  }));
}
const figures = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".figure"));
figures.forEach(addFigureButtons);
for (const each of [at("all-values"), matchMedia("(prefers-color-scheme: dark)")]) each.addEventListener("change", () => redraw([...figures]));
window.addEventListener("beforeprint", () => drawFigures((name) => at(name).offsetParent !== null));
window.addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => {
  if (comparing()) return document.hidden || attempt(showComparison);
  return shown.now ? shown.now.updateLater() : attempt(showList);
});
linkTables();
drawSelection();
attempt(showSession).then(route);
