// @ts-check
// The first request of an experiment's page. page.html loads this module before Plotly's script, which takes longer
// than all others: the service reads the journal meanwhile.

import { readAddress } from "./address.js";
import { get, pathOf } from "./service.js";
import { figuresAt } from "./tabs.js";

/** @typedef {import("./api.js").Changes} Changes */

export const FIGURES = ["best", "front", "confirmed", "curves", "rung_values", "lineage", "history", "parallel", "slices",
  "failing", "timeline", "usage"];
export const FIRST_ROWS = 500; // loaded at first; a table that is shown loads all its rows

/** Returns the figure at the top of the tab that the address names; a second request brings the others. */
export const firstFigures = () => figuresAt(readAddress().place, FIGURES).slice(0, 1);

/** @param {string} name @returns {Promise<Changes>} */
const ask = (name) => get(`${pathOf(name)}/changes?${new URLSearchParams([["since", "0"], ["limit", String(FIRST_ROWS)],
  ...firstFigures().map((figure) => ["figures", figure])])}`);

/** What was requested before the other scripts ran.
 * @type {{name: string, answer: Promise<Changes>} | null} */
let begun = null;
const { name } = readAddress();
if (name && !name.startsWith("key=")) {
  begun = { name, answer: ask(name) };
  begun.answer.catch(() => {}); // whoever uses the answer gets its error
}

/** Returns the first rows and figures of an experiment.
 * @param {string} name */
export function firstPage(name) {
  const answer = begun?.name === name ? begun.answer : ask(name);
  begun = null;
  return answer;
}
