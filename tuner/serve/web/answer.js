// @ts-check
// What a search has found out: the best setting, how far the search is, and the verdict: what was pruned, saved and
// perhaps lost, why the search ended, what is next. The service writes the verdict's sentences, so that the page, the
// report and the command say the same.

import { addressOf, addressOfTrial } from "./address.js";
import { at, counted, duration, el, flat, moment, number, set, shownAs, tell } from "./dom.js";
import { BUSY, numTrials } from "./experiment.js";
import { rules, state } from "./tables.js";

/** @typedef {import("./api.js").Changes} Changes */
/** @typedef {import("./api.js").Summary} Summary */
/** @typedef {import("./api.js").Verdict} Verdict */

let drawn = ""; // the answer on display: an equal one is not drawn again, so that a selection of its text stays

/** @param {Changes} loaded */
export function drawAnswer(loaded) {
  const { summary, verdict, best_metrics, front, confirmed } = loaded, { best, metric } = summary;
  set(at("summary"), summarised(summary));
  tell("nothing", best ? "" : nothing(loaded));
  at("answer-section").hidden = !best;
  at("best-section").hidden = !best;
  at("verdict-section").hidden = !summary.started && !summary.lines; // the search waits to be started
  const text = JSON.stringify([summary.name, best, verdict, best_metrics]);
  if (text === drawn) return;
  drawn = text;
  const mean = confirmed.find(({ trials }) => trials.includes(best?.trial ?? ""))?.mean, others = Object.entries(best_metrics).filter(([name]) => name !== metric);
  if (best) {
    const what = front.length ? "Knee of the Pareto front" : "Best setting";
    set(at("best-value"), `${what}: ${metric} ${number(best.value)}, trial ${best.trial} at epoch ${best.epoch}${typeof mean === "number" ? `; mean over other seeds ${number(mean)}` : ""}`);
    at("best-setting").replaceChildren(...flat(best.config).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, shownAs(value)))));
    set(at("best-metrics"), others.length ? `At that epoch: ${others.map(([name, value]) => `${name} ${number(value)}`).join(", ")}.` : "");
    at("best-link", HTMLAnchorElement).href = addressOfTrial(best.trial);
  }
  const isBad = ["refused", "failed"].includes(verdict.outcome);
  at("verdict-section").className = `verdict ${isBad ? "bad" : verdict.outcome === "finished" ? "" : "open"}`;
  set(at("verdict-ended"), verdict.ended);
  at("verdict-points").replaceChildren(...points(summary.name, verdict));
}

/** @param {Summary} summary */
function summarised(summary) {
  const counts = Object.entries(summary.counts).filter(([, n]) => n).map(([status, n]) => `${n} ${status}`);
  const started = numTrials(summary);
  return [summary.space, rules(summary).join(" + "), state(summary),
    `${started} ${summary.asked ? `of ${summary.asked} ` : ""}trials${counts.length ? `: ${counts.join(", ")}` : ""}`,
    `${summary.epochs} ${summary.num_samples ? `of at most ${summary.asked * summary.length} ` : ""}epochs trained`
    + (summary.repeated_epochs ? ` (${summary.repeated_epochs} more were trained again)` : ""),
    summary.started && `started ${moment(summary.started)}`, summary.started && `duration ${duration(summary.took_s)}`]
    .filter(Boolean).join(" · ");
}

/** Says how many trials of how many have ended: `37 of 100`.
 * @param {Summary} summary */
export const ofAll = ({ ended, asked }) => (asked ? `${ended} of ${asked}` : `${ended}`);

/** Says how far a search is, how fast, and for how long it will run.
 * @param {Summary} summary */
export function progressed(summary) {
  const { counts, rate, left_s } = summary, speed = rate !== null && (rate < 60 ? `${number(Number(rate.toPrecision(2)))} an hour` : `${number(Number((rate / 60).toPrecision(2)))} a minute`);
  return [`${ofAll(summary)} trials have ended`, counts.running && `${counts.running} running`, counts.paused && `${counts.paused} paused`,
    speed, left_s !== null && `about ${duration(left_s)} left`].filter(Boolean).join(", ");
}

/** Shows the progress of a search that is under way, on the page and in the browser's title.
 * @param {Summary} summary */
export function drawProgress(summary) {
  const isRunning = ["running", "stopping"].includes(summary.state), bar = at("progress", HTMLProgressElement);
  bar.hidden = !isRunning || !summary.asked;
  Object.assign(bar, { max: summary.asked || 1, value: summary.ended, ariaLabel: "trials that have ended" });
  set(at("progress-text"), isRunning ? progressed(summary) : "");
  document.title = `${isRunning ? `${ofAll(summary)} ` : ""}${summary.name}: tuner`;
}

/** Says why no trial is the best one.
 * @param {Changes} loaded */
function nothing({ summary, trials }) {
  if (summary.outcome === "refused") return "A refused search has no best trial.";
  const reporting = trials.filter((trial) => trial.epochs).length;
  const failed = trials.find((trial) => trial.errors.length || trial.status === "failed");
  if (failed) return `No finite ${summary.metric}. Trial ${failed.trial}: ${failed.errors.at(-1) ?? failed.reason}`;
  if (reporting) return `No trial reported a finite ${summary.metric} (${counted(reporting, "trial")} reported): the training diverges.`;
  return BUSY.includes(summary.state) ? "No report yet." : "The search ended before a trial reported.";
}

/** Returns what the verdict lists: each point's term and text, the close calls as links, and the commands of the next
 * steps.
 * @param {string} name of the experiment @param {Verdict} verdict */
function points(name, verdict) {
  const links = verdict.close_calls.flatMap(({ trial }) => [" ", el("a", { href: addressOf(name, trial) }, trial)]);
  const known = verdict.points.flatMap(({ term, text, tone }) =>
    [el("dt", {}, term), el("dd", { className: tone }, text, ...(term === "close calls" ? links : []))]);
  const steps = verdict.steps.flatMap(({ text, command }, i) =>
    [...(i ? [] : [el("dt", {}, "next")]), el("dd", { className: "next" }, text, ...(command ? [el("code", {}, command)] : []))]);
  return [...known, ...steps];
}

/** Returns the summary's notices without those that the verdict has said.
 * @param {Changes} loaded */
export function unsaid({ summary, verdict }) {
  const isSaid = (/** @type {string} */ notice) => verdict.ended.includes(notice) || notice === summary.message;
  return summary.killed ? summary.notice : summary.notice.split(" \u00b7 ").filter((each) => !isSaid(each)).join(" \u00b7 ");
}
