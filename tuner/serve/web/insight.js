// @ts-check
// The sections that are loaded on request: what if, contour, importance, the audit, one trial.

import { at, number, parameters, set } from "./dom.js";
import { near, shown } from "./experiment.js";
import { fill } from "./grid.js";
import { drawInto } from "./look.js";
import { get } from "./service.js";
import { AUDITED, DECISIONS, FATES } from "./tables.js";

/** @typedef {import("./api.js").Changes} Changes */
/** @typedef {import("./api.js").FigureAnswer} FigureAnswer */
/** @typedef {import("./api.js").Range} Range */
/** @typedef {import("./api.js").WhatIf} WhatIf */

/** @param {Range} range */
const span = ({ least, most }) => (least === most ? String(least) : `${least} to ${most}`);

/** A section's last request: for which experiment, at how many lines of its journal, and when it may be repeated.
 * @typedef {{of: string, lines: number, again: number, timer?: number}} Request */
/** @type {Map<string, Request>} */
const requests = new Map();

/**
 * Sends a request and draws the response, unless the user opened another experiment or sent another request meanwhile.
 *
 * @template Answer
 * @param {string} id
 * @param {string} part of the experiment's address
 * @param {(answer: Answer, name: string) => void} draw
 */
async function ask(id, part, draw) {
  const experiment = shown.now;
  if (!experiment) return;
  /** @type {Request} */
  const request = { of: experiment.name, lines: experiment.loaded?.summary.lines ?? 0, again: Infinity };
  requests.set(id, request);
  const began = performance.now();
  try {
    const answer = await get(`${experiment.path}/${part}`);
    if (requests.get(id) !== request || experiment.isClosed) return;
    at(`${id}-status`).className = "";
    draw(answer, experiment.name);
  } catch (error) {
    if (requests.get(id) !== request || experiment.isClosed) return;
    set(at(`${id}-status`), inForm(error instanceof Error ? error.message : String(error)));
    at(`${id}-status`).className = "failed";
    at(id).hidden = true;
    const text = document.getElementById(`${id}-text`); // describes the figure of an earlier answer
    if (text) text.hidden = true;
    if (id === "whatif") {
      at("fates-part").hidden = true;
      for (const line of ["whatif-notes", "whatif-count"]) set(at(line), "");
    }
  }
  // New events repeat the request, but a request that takes seconds may use at most a tenth of the service's time.
  request.again = began + 11 * (performance.now() - began);
}

/** Names a field of a request as its form does: `grace_period 0: must be ...` becomes `grace period 0: must be ...`.
 * @param {string} message */
const inForm = (message) => message.replace(/^[a-z_]+(?=[ :])/, (name) => name.replaceAll("_", " "));

// --- what if ---------------------------------------------------------------------------------------------------------

const RULES = {
  scheduler: at("if-scheduler", HTMLSelectElement), grace: at("if-grace", HTMLInputElement),
  factor: at("if-factor", HTMLInputElement), brackets: at("if-brackets", HTMLInputElement),
};
let rulesOf = ""; // the experiment whose rules the form was filled with

function whatIf() {
  const { scheduler, grace, factor, brackets } = RULES;
  const isAsha = ["asha", "asha-promotion"].includes(scheduler.value);
  brackets.disabled = !isAsha;
  grace.disabled = !isAsha && scheduler.value !== "median";
  factor.disabled = !isAsha && scheduler.value !== "hyperband";
  const query = new URLSearchParams({ scheduler: scheduler.value, grace_period: grace.value || "1",
    reduction_factor: factor.value || "2", brackets: brackets.disabled ? "1" : brackets.value || "1" });
  /** @param {import("./api.js").WhatIfAnswer} answer @param {string} name */
  const draw = ({ outcome, figure }, name) => {
    set(at("whatif-status"), verdict(outcome));
    set(at("whatif-notes"), outcome.notes.join(" "));
    at("whatif").hidden = false;
    drawInto(at("whatif"), figure, name, (layout) => {
      layout.yaxis.type = at("log-metric", HTMLInputElement).checked ? "log" : "-";
    });
    const changed = outcome.fates.filter((f) => f.epochs !== f.recorded || f.outcome === "unknown");
    const count = changed.length === 1 ? "1 trial has" : `${changed.length} trials have`;
    set(at("whatif-count"), changed.length ? `${count} a different or unknown outcome.` : "No trial ends differently.");
    fill(at("fates", HTMLTableElement), FATES, changed);
    at("fates-part").hidden = !changed.length;
  };
  ask("whatif", `what-if?${query}`, draw);
}

/**
 * Describes the result of a replay.
 *
 * @param {WhatIf} o
 */
function verdict(o) {
  const best = !o.best ? "no trial has a finite metric" : o.best_lost === null ? "whether the best trial is kept is unknown"
    : o.best_lost ? "the best trial is LOST" : "the best trial is kept";
  const saved = { least: o.epochs_recorded - o.epochs.most, most: o.epochs_recorded - o.epochs.least };
  const more = { least: -saved.most, most: -saved.least };
  const change = saved.most === 0 && saved.least === 0 ? "no change" : saved.most <= 0 ? `${span(more)} more`
    : saved.least >= 0 ? `${span(saved)} saved` : `between ${saved.most} saved and ${-saved.least} more`;
  const again = o.reproduced === null ? "" : ` Check: with the search's own rules, the replay repeats ${o.reproduced} ` +
    `of the ${o.stopped_recorded} recorded prunes, at the same epoch and cutoff.`;
  return `${span(o.stopped)} trials pruned (recorded: ${o.stopped_recorded}); ${span(o.epochs)} epochs trained ` +
    `(recorded: ${o.epochs_recorded}; ${change}); ${best}.${again}`;
}

/** @param {import("./api.js").Summary} summary */
function prepareWhatIf(summary) {
  if (rulesOf === summary.name) return;
  rulesOf = summary.name;
  const replayed = [...RULES.scheduler.options].map((option) => option.value);
  RULES.scheduler.value = replayed.includes(summary.scheduler) ? summary.scheduler : "asha";
  RULES.grace.value = String(summary.grace_period);
  RULES.factor.value = String(summary.reduction_factor);
  RULES.brackets.value = String(summary.brackets);
}

// --- parameters ------------------------------------------------------------------------------------------------------

const AXES = { x: at("contour-x", HTMLSelectElement), y: at("contour-y", HTMLSelectElement) };
let axesOf = ""; // the experiment and parameters that the two selects offer

/** @param {Changes} loaded */
function prepareContour({ summary, parameters }) {
  at("contour-section").hidden = parameters.length < 2;
  at("importance-section").hidden = parameters.length < 1;
  const offered = [summary.name, ...parameters].join("\n");
  if (parameters.length < 2 || offered === axesOf) return;
  axesOf = offered;
  for (const [box, first] of /** @type {const} */ ([[AXES.x, 0], [AXES.y, 1]])) {
    box.replaceChildren(...parameters.map((name) => new Option(name, name)));
    box.selectedIndex = first;
  }
}

/** @returns {{values?: string}} which value of each trial to compare, if the user chose one */
const chosenValues = () => (shown.now?.values ? { values: shown.now.values } : {});

/** Draws the open figures again that compare one value of each trial. */
export function drawCompared() {
  for (const { id, show } of SECTIONS) {
    if (["contour", "importance"].includes(id) && section(id).open && !section(id).hidden) show();
  }
}

function contour() {
  const query = new URLSearchParams({ x: AXES.x.value, y: AXES.y.value, ...chosenValues() });
  /** @param {FigureAnswer} answer @param {string} name */
  const draw = ({ figure }, name) => {
    set(at("contour-status"), "");
    at("contour").hidden = false;
    drawInto(at("contour"), figure, `${name} ${query}`);
  };
  ask("contour", `contour?${query}`, draw);
}

let importanceOf = ""; // the experiment whose importance is drawn

function importance() {
  set(at("importance-status"), "Training random forests ...");
  at("importance").hidden = importanceOf !== shown.now?.name;
  /** @param {FigureAnswer} answer @param {string} name */
  const draw = ({ figure }, name) => {
    importanceOf = name;
    set(at("importance-status"), "");
    at("importance").hidden = false;
    drawInto(at("importance"), figure, name);
  };
  ask("importance", `importance?${new URLSearchParams(chosenValues())}`, draw);
}

// --- the audit -------------------------------------------------------------------------------------------------------

function audit() {
  /** @param {import("./api.js").AuditAnswer} answer */
  const draw = ({ result, command }) => {
    at("audit").hidden = !result;
    set(at("audit-command"), command);
    at("audit-line").hidden = !command;
    set(at("audit-status"), result ? audited(result) : "No audit yet. An audit trains a sample of pruned trials " +
      "to the end and counts how many of them beat the best trial.");
    if (result) fill(at("audited", HTMLTableElement), AUDITED, result.trials);
  };
  ask("audit", "audit", draw);
}

/** @param {import("./api.js").AuditResult} result */
function audited(result) {
  return `Trained to the end, ${result.beat} of ${result.done} pruned trials beat the best trial, ${result.winner} ` +
    `(${result.metric} ${number(result.winner_value)}). ${result.estimate}` +
    (result.done < result.asked ? ` ${result.asked - result.done} trials of the sample are not trained yet.` : "");
}

// --- one trial -------------------------------------------------------------------------------------------------------

/**
 * Opens the dialog of a trial.
 *
 * @param {string} id
 */
export async function showTrial(id) {
  const experiment = shown.now;
  if (!experiment) return;
  /** @type {import("./api.js").OneTrial} */
  const { row, decisions, figure, cost, checkpoint, retrain, logs } =
    await get(`${experiment.path}/trials/${encodeURIComponent(id)}`);
  if (experiment.isClosed || experiment.trial !== id) return;
  set(at("trial-name"), `Trial ${row.trial}: ${row.status}`);
  set(at("trial-reason"), row.reason);
  set(at("trial-parameters"), parameters(row.config));
  set(at("trial-cost"), [cost, row.node && `node ${row.node}`].filter(Boolean).join(" · "));
  set(at("trial-errors"), row.errors.join("\n\n"));
  at("trial-errors").hidden = !row.errors.length;
  set(at("trial-checkpoint"), checkpoint || "none kept");
  set(at("trial-retrain"), retrain);
  at("trial-retrain-line").hidden = !retrain;
  at("trial-decisions-part").hidden = !decisions.length;
  fill(at("trial-decisions", HTMLTableElement), DECISIONS.slice(1), decisions);
  at("trial-logs").replaceChildren(...logs.map((log) => {
    const part = document.createElement("details");
    part.open = true;
    part.append(Object.assign(document.createElement("summary"), { textContent: `${log.name}, ${log.size_bytes} bytes` }),
      Object.assign(document.createElement("pre"), { textContent: log.tail, tabIndex: 0 }));
    return part;
  }));
  if (!DIALOG.open) DIALOG.showModal();
  at("trial-figure").hidden = !figure.data.length;
  if (figure.data.length) drawInto(at("trial-figure"), figure, id);
}

// --- when ------------------------------------------------------------------------------------------------------------

const DIALOG = at("trial", HTMLDialogElement);
const SECTIONS = [{ id: "whatif", show: whatIf }, { id: "contour", show: contour },
  { id: "importance", show: importance }, { id: "audit", show: audit }];
/** @param {string} id */
const section = (id) => at(`${id}-section`, HTMLDetailsElement);

/**
 * Called at each update and when a section comes onto the screen. A closed section sends no request; one far from the
 * screen repeats none.
 *
 * @param {Changes} loaded
 */
export function drawInsight(loaded) {
  prepareWhatIf(loaded.summary);
  prepareContour(loaded);
  section("whatif").hidden = !loaded.figures.curves;
  section("audit").hidden = !loaded.summary.audit;
  for (const { id, show } of SECTIONS) {
    if (!section(id).open || section(id).hidden) continue;
    const last = requests.get(id);
    if (last?.of !== loaded.summary.name) show();
    else if (near.has(`${id}-section`) && last.lines !== loaded.summary.lines) repeat(id, show, last);
  }
}

/**
 * Repeats the request of a section, at once or when it may be repeated.
 *
 * @param {string} id
 * @param {() => void} show
 * @param {Request} last
 */
function repeat(id, show, last) {
  clearTimeout(last.timer);
  const repeatIfLast = () => { if (requests.get(id) === last && last.of === shown.now?.name) show(); };
  const pause = last.again - performance.now();
  if (pause <= 0) show();
  else if (pause < Infinity) last.timer = setTimeout(repeatIfLast, pause);
}

for (const { id, show } of SECTIONS) {
  section(id).addEventListener("toggle", () => section(id).open && shown.now?.loaded && show());
}
for (const input of Object.values(RULES)) input.addEventListener("change", whatIf);
for (const box of Object.values(AXES)) box.addEventListener("change", contour);
DIALOG.addEventListener("close", () => {
  if (shown.now?.trial) location.hash = encodeURIComponent(shown.now.name);
});
at("trial-close").addEventListener("click", () => DIALOG.close());
