// @ts-check
// The sections that are loaded on request: what if, contour, importance, costs, the audit, one trial.

import { addressOf, readAddress } from "./address.js";
import { at, bytes, counted, el, number, offer, parameters, set, tell } from "./dom.js";
import { near, shown } from "./experiment.js";
import { fill } from "./grid.js";
import { drawInto } from "./look.js";
import { get } from "./service.js";
import { columnsOf } from "./tables.js";

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

/** Sends a request and draws the response, unless the user opened another experiment or sent another request meanwhile.
 * @template Answer @param {string} id @param {string} part of the experiment's address
 * @param {(answer: Answer, name: string) => void} draw */
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

/** @param {string} table */
const described = (table) => columnsOf(shown.now?.loaded?.columns[table] ?? []);

// --- what if ---------------------------------------------------------------------------------------------------------

const RULES = {
  scheduler: at("if-scheduler", HTMLSelectElement), grace: at("if-grace", HTMLInputElement),
  factor: at("if-factor", HTMLInputElement), brackets: at("if-brackets", HTMLInputElement),
};
/** @type {Changes["replayed"]} */
let replayed = {}; // the schedulers that the form offers, and the options that each uses
let rulesOf = ""; // the experiment whose rules the form was filled with

function whatIf() {
  const { scheduler, grace, factor, brackets } = RULES, uses = replayed[scheduler.value];
  brackets.disabled = !uses.includes("brackets");
  grace.disabled = !uses.includes("grace_period");
  factor.disabled = !uses.includes("reduction_factor");
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
    set(at("whatif-count"), changed.length ? `${counted(changed.length, "trial")} with a different or unknown outcome.` : "No trial ends differently.");
    at("fates-part").hidden = !changed.length;
    fill(at("fates"), described("fates"), changed);
  };
  ask("whatif", `what-if?${query}`, draw);
}

/** Describes the result of a replay.
 * @param {WhatIf} o */
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

/** @param {Changes} loaded */
function prepareWhatIf({ summary, replayed: known }) {
  if (rulesOf === summary.name) return;
  rulesOf = summary.name;
  replayed = known;
  offer("if-scheduler", Object.keys(known).map((name) => [name, name]), summary.scheduler in known ? summary.scheduler : "asha");
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
  Object.values(AXES).forEach(({ id }, first) => offer(id, parameters.map((name) => [name, name]), parameters[first]));
}

/** @returns {{values?: string}} which value of each trial to compare, if the user chose one */
const chosenValues = () => (shown.now?.values ? { values: shown.now.values } : {});

/** Draws the open figures again that compare one value of each trial. */
export function drawCompared() {
  for (const { id, show } of SECTIONS) {
    if (["contour", "importance"].includes(id) && section(id).open && !section(id).hidden) show();
  }
}

/** Draws a figure that the service computes on request.
 * @param {string} id @param {string} part */
function showFigure(id, part) {
  ask(id, part, (/** @type {FigureAnswer} */ { figure }, name) => {
    set(at(`${id}-status`), "");
    at(id).hidden = false;
    drawInto(at(id), figure, `${name} ${part}`);
  });
}

const contour = () => showFigure("contour", `contour?${new URLSearchParams({ x: AXES.x.value, y: AXES.y.value, ...chosenValues() })}`);

function importance() {
  set(at("importance-status"), "Training random forests ...");
  showFigure("importance", `importance?${new URLSearchParams(chosenValues())}`);
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
    if (result) fill(at("audited"), described("audited"), result.trials);
  };
  ask("audit", "audit", draw);
}

function costs() {
  /** @param {import("./api.js").Costs} answer */
  const draw = ({ rows }) => {
    set(at("costs-status"), rows.length ? "Sums of all trials that have the value, in time on workers." : "No parameter differs between trials, or each trial has a value of its own.");
    at("costs").hidden = false;
    fill(at("costs"), described("costs"), rows);
  };
  ask("costs", "costs", draw);
}

/** @param {import("./api.js").AuditResult} result */
function audited(result) {
  return `Trained to the end, ${result.beat} of ${result.done} pruned trials beat the best trial, ${result.winner} ` +
    `(${result.metric} ${number(result.winner_value)}). ${result.estimate}` +
    (result.done < result.asked ? ` ${result.asked - result.done} trials of the sample are not trained yet.` : "");
}

// --- one trial -------------------------------------------------------------------------------------------------------

/** Opens the dialog of a trial.
 * @param {string} id */
export async function showTrial(id) {
  const experiment = shown.now;
  if (!experiment) return;
  /** @type {import("./api.js").OneTrial} */
  const { row, decisions, figure, cost, checkpoint, retrain, logs } = await get(`${experiment.path}/trials/${encodeURIComponent(id)}`);
  if (experiment.isClosed || experiment.trial !== id) return;
  set(at("trial-name"), `Trial ${row.trial}: ${row.status}`);
  set(at("trial-reason"), row.reason);
  set(at("trial-parameters"), parameters(row.config));
  set(at("trial-cost"), [cost, row.node && `node ${row.node}`].filter(Boolean).join(" · "));
  tell("trial-errors", row.errors.join("\n\n"));
  set(at("trial-checkpoint"), checkpoint || "none kept");
  set(at("trial-retrain"), retrain);
  at("trial-retrain-line").hidden = !retrain;
  at("trial-decisions-part").hidden = !decisions.length;
  at("trial-logs").replaceChildren(...logs.map((log) => el("details", { open: true }, el("summary", {}, `${log.name}, ${bytes(log.size_bytes)}`),
    el("pre", { tabIndex: 0 }, log.tail))));
  if (!DIALOG.open) DIALOG.showModal();
  fill(at("trial-decisions"), described("decisions").slice(1), decisions);
  at("trial-figure").hidden = !figure.data.length;
  if (figure.data.length) drawInto(at("trial-figure"), figure, id);
}

// --- when ------------------------------------------------------------------------------------------------------------

const DIALOG = at("trial", HTMLDialogElement);
const SECTIONS = [{ id: "whatif", show: whatIf }, { id: "contour", show: contour },
  { id: "importance", show: importance }, { id: "costs", show: costs }, { id: "audit", show: audit }];
/** @param {string} id */
const section = (id) => at(`${id}-section`, HTMLDetailsElement);

/** Called at each update and when a section comes onto the screen. A closed section sends no request; one far from the
 * screen repeats none.
 * @param {Changes} loaded */
export function drawInsight(loaded) {
  prepareWhatIf(loaded);
  prepareContour(loaded);
  section("whatif").hidden = !loaded.figures.curves;
  section("audit").hidden = !loaded.summary.audit;
  section("costs").hidden = !loaded.parameters.length;
  for (const { id, show } of SECTIONS) {
    if (!section(id).open || section(id).hidden) continue;
    const last = requests.get(id);
    if (last?.of !== loaded.summary.name) {
      at(id).hidden = true; // it shows another experiment
      show();
    }
    else if (near.has(`${id}-section`) && last.lines !== loaded.summary.lines) {
      const pause = last.again - performance.now();
      if (pause <= 0) show();
      else if (pause < Infinity) last.timer ??= setTimeout(() => shown.now?.loaded && drawInsight(shown.now.loaded), pause);
    }
  }
}

for (const { id, show } of SECTIONS) {
  section(id).addEventListener("toggle", () => section(id).open && shown.now?.loaded && show());
}
for (const input of Object.values(RULES)) input.addEventListener("change", whatIf);
for (const box of Object.values(AXES)) box.addEventListener("change", contour);
/** Leaves the trial's address, which closes the dialog; its event `close` may come after the address of another trial. */
function leave() {
  if (shown.now?.trial) location.hash = addressOf(shown.now.name, "", readAddress().place);
}
DIALOG.addEventListener("cancel", leave); // Escape
at("trial-close").addEventListener("click", leave);
