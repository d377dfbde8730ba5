// @ts-check
// One page, two views: the list of experiments (#) and one experiment (#name), kept up to date by its journal.

import { readAddress, writePins } from "./address.js";
import { comparing, refreshComparison, showComparison } from "./compare.js";
import { showControl, showSession } from "./control.js";
import { at, attempt, duration, moment, number, parameters, set } from "./dom.js";
import { BUSY, Experiment, FIGURES, isNear, shown } from "./experiment.js";
import { addImageButtons } from "./download.js";
import { fill, resetTables, source } from "./grid.js";
import { showDamaged, showLabels } from "./labels.js";
import { drawCompared, drawInsight, showTrial } from "./insight.js";
import { showList } from "./list.js";
import { drawInto, place } from "./look.js";
import { drawPinned } from "./pinned.js";
import { linkTables } from "./rows.js";
import { showSection } from "./sections.js";
import { choice, open, setPins } from "./selection.js";
import { drawSelection } from "./selection_bar.js";
import { DECISIONS, RUNGS, rules, state, trialColumns } from "./tables.js";
import { drawVerdict, unsaid } from "./verdict.js";

/** @typedef {import("./api.js").Changes} Changes */

// --- one experiment --------------------------------------------------------------------------------------------------

/** @param {Changes} loaded @param {string[]} figures the figures that have changed */
function draw(loaded, figures) {
  const { summary, rungs, decisions } = loaded;
  set(at("name"), summary.name);
  drawVerdict(loaded);
  set(at("summary"), summarised(summary));
  const { best, metric } = summary;
  const winner = best && `trial ${best.trial}, epoch ${best.epoch}: ${parameters(best.config)}`;
  set(at("best"), best ? `Best ${metric} ${number(best.value)}: ${winner}` : "");
  showControl(summary);
  showLabels(summary);
  const notice = unsaid(loaded);
  set(at("notice"), notice);
  at("notice").hidden = !notice;
  set(at("nothing"), best ? "" : nothing(loaded));
  at("nothing").hidden = Boolean(best);
  set(at("resume"), summary.resume);
  at("commands").hidden = !summary.resume;
  set(at("retrain"), summary.retrain);
  at("retrain-line").hidden = !summary.retrain;
  at("rungs-section").hidden = !rungs.length;
  at("decisions-section").hidden = !decisions.length;
  at("trials-section").hidden = !loaded.num_trials;
  fill(at("rungs", HTMLTableElement), RUNGS, rungs);
  fill(at("decisions", HTMLTableElement), DECISIONS, decisions, loaded.num_decisions);
  fill(at("trials", HTMLTableElement), trialColumns(loaded.trials, metric), loaded.trials, loaded.num_trials);
  drawChoices(loaded);
  for (const name of FIGURES) at(`${name}-section`).hidden = !loaded.figures[name];
  for (const name of figures) {
    undrawn.add(name);
    place(at(name), loaded.figures[name]);
  }
  drawFigures((name) => isNear(name));
  drawInsight(loaded);
  drawPinned(loaded);
}

/** @param {import("./api.js").Summary} summary */
function summarised(summary) {
  const counts = Object.entries(summary.counts).filter(([, n]) => n).map(([status, n]) => `${n} ${status}`);
  const started = Object.values(summary.counts).reduce((sum, n) => sum + n, 0);
  return [summary.space, rules(summary).join(" + "), state(summary),
    `${started} ${summary.num_samples ? `of ${summary.num_samples} ` : ""}trials${counts.length ? `: ${counts.join(", ")}` : ""}`,
    `${summary.epochs} ${summary.num_samples ? `of at most ${summary.num_samples * summary.length} ` : ""}epochs trained`
    + (summary.repeated_epochs ? ` (${summary.repeated_epochs} more were trained again)` : ""),
    summary.started && `started ${moment(summary.started)}`, summary.started && `duration ${duration(summary.took_s)}`]
    .filter(Boolean).join(" · ");
}

/**
 * Says why no trial is the best one.
 *
 * @param {Changes} loaded
 */
function nothing({ summary, trials }) {
  if (summary.outcome === "refused") return "A refused search has no best trial.";
  const reporting = trials.filter((trial) => trial.epochs).length;
  const failed = trials.find((trial) => trial.errors.length || trial.status === "failed");
  if (failed) return `No finite ${summary.metric}. Trial ${failed.trial}: ${failed.errors.at(-1) ?? failed.reason}`;
  if (reporting) return `No trial reported a finite ${summary.metric} (${reporting} reported): the training diverges.`;
  return BUSY.includes(summary.state) ? "No report yet." : "The search ended before a trial reported.";
}

/** @param {Changes} loaded */
function drawChoices({ value_choices, value_default, summary, figures }) {
  const box = at("values", HTMLSelectElement), chosen = shown.now?.values || value_default;
  at("values-choice").hidden = !figures.parallel;
  /** @param {string} choice */
  const name = (choice) => (isNaN(Number(choice)) ? `the ${choice} ${summary.metric} of each trial`
    : `the ${summary.metric} at epoch ${choice}`);
  const choices = value_choices.includes(chosen) ? value_choices : [...value_choices, chosen];
  const offered = [...box.options].map((option) => option.textContent);
  if (String(offered) !== String(choices.map(name))) {
    box.replaceChildren(...choices.map((choice) => new Option(name(choice), choice)));
  }
  box.value = chosen;
}

/** Figures that are not drawn as they are loaded: they are far from the screen. Drawing all takes a second.
 * @type {Set<string>} */
const undrawn = new Set();

/** Draws the figures of a kind that have changed since they were drawn.
 * @param {(name: string) => boolean} isWanted */
function drawFigures(isWanted = () => true) {
  const loaded = shown.now?.loaded;
  for (const name of loaded ? [...undrawn].filter(isWanted) : []) {
    undrawn.delete(name);
    if (loaded?.figures[name]) drawFigure(loaded, name);
  }
}

const PRUNED = ["pruned", "stop", "cutoff"]; // traces of pruned trials only

/** @param {string} id */
const isChecked = (id) => at(id, HTMLInputElement).checked;

/** @param {Changes} loaded @param {string} name */
function drawFigure({ summary, figures }, name) {
  if (name !== "curves") return drawInto(at(name), figures[name], summary.name);
  const logs = { xaxis: isChecked("log-epoch"), yaxis: isChecked("log-metric") };
  drawInto(at(name), figures[name], summary.name, (layout, data) => {
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
    for (const trace of data) trace.visible = isChecked("show-pruned") || !PRUNED.includes(trace.meta);
  });
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
  const { name, trial, section, pins } = readAddress();
  if (shown.now?.name !== name || !shown.now?.loaded) await show(name);
  if (pins && shown.now?.name === name) setPins(pins);
  if (shown.now) writePins(choice.now.pinned); // a link within the page does not name them
  const experiment = shown.now;
  if (!experiment || experiment.name !== name) return;
  experiment.trial = trial;
  if (trial && experiment.loaded) await attempt(() => showTrial(trial));
  if (!trial) at("trial", HTMLDialogElement).close();
  if (!section) return;
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
  open(name ?? "");
  undrawn.clear();
  const experiment = shown.now = name ? new Experiment(name, draw, (text) => set(at("live"), text)) : null;
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
  if (shown.now === experiment && status === UNREADABLE) showDamaged(experiment.name);
  at("one").hidden = shown.now === experiment && !experiment.loaded;
}

function redraw() {
  const loaded = shown.now?.loaded;
  if (loaded) draw(loaded, Object.keys(loaded.figures));
}

source.name = () => shown.now?.name ?? (comparing() ? "compare" : "experiments");
source.all = async () => {
  const experiment = shown.now;
  if (experiment?.loaded && !experiment.isWhole) await experiment.load({ all: true, fresh: false });
};

at("values").addEventListener("change", () => attempt(async () => {
  const loading = shown.now?.compareBy(at("values", HTMLSelectElement).value);
  drawCompared();
  await loading;
}));
for (const id of ["show-pruned", "log-metric", "log-epoch", "all-values"]) at(id).addEventListener("change", redraw);
for (const figure of document.querySelectorAll(".figure")) addImageButtons(/** @type {HTMLElement} */ (figure));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refreshComparison);
window.addEventListener("beforeprint", () => drawFigures());
window.addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => {
  if (comparing()) return document.hidden || attempt(showComparison);
  return shown.now ? shown.now.updateLater() : attempt(showList);
});
linkTables();
drawSelection();
attempt(showSession).then(route);
