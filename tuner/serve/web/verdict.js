// @ts-check
// The box at the top of an experiment: what was pruned, saved and perhaps lost, why the search ended, what is next.
// The service writes the sentences, so that the page, the report and the command say the same.

import { at, set } from "./dom.js";

/** @typedef {import("./api.js").Changes} Changes */
/** @typedef {import("./api.js").Verdict} Verdict */

let drawn = ""; // the verdict on display: an equal one is not drawn again, so that a selection of its text stays

/** @param {Changes} loaded */
export function drawVerdict({ summary, verdict }) {
  const box = at("verdict");
  box.hidden = !summary.started && !summary.lines; // the search waits to be started
  const text = summary.name + JSON.stringify(verdict);
  if (text === drawn) return;
  drawn = text;
  const isBad = ["refused", "failed"].includes(verdict.outcome);
  box.className = `verdict ${isBad ? "bad" : verdict.outcome === "finished" ? "" : "open"}`;
  set(at("verdict-ended"), verdict.ended);
  at("verdict-points").replaceChildren(...points(summary.name, verdict).flatMap(([term, className, ...parts]) => {
    const described = Object.assign(document.createElement("dd"), { className });
    described.append(...parts);
    return term ? [Object.assign(document.createElement("dt"), { textContent: term }), described] : [described];
  }));
}

/**
 * Returns what the box lists: each point's term, its CSS class, and its parts.
 *
 * @param {string} name of the experiment
 * @param {Verdict} verdict
 */
function points(name, verdict) {
  const links = verdict.close_calls.flatMap((call) => {
    const href = `#${encodeURIComponent(name)}/${encodeURIComponent(call.trial)}`;
    return [" ", Object.assign(document.createElement("a"), { href, textContent: call.trial })];
  });
  /** @type {[string, string, ...(Node | string)[]][]} */
  const known = verdict.points.map(({ term, text, tone }) => [term, tone, text, ...(term === "close calls" ? links : [])]);
  const steps = verdict.steps.map(({ text, command }, number) => {
    const code = Object.assign(document.createElement("code"), { textContent: command });
    return /** @type {typeof known[0]} */ ([number ? "" : "next", "next", text, command ? code : ""]);
  });
  return [...known, ...steps];
}

/**
 * Returns the summary's notices without those that the verdict has said.
 *
 * @param {Changes} loaded
 */
export function unsaid({ summary, verdict }) {
  const isSaid = (/** @type {string} */ notice) => verdict.ended.includes(notice) || notice === summary.message;
  return summary.killed ? summary.notice : summary.notice.split(" \u00b7 ").filter((each) => !isSaid(each)).join(" \u00b7 ");
}
