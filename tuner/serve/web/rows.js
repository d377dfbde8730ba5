// @ts-check
// The rows of tables: keys move between them, and clicks and keys select their trials.

import { addressOfTrial } from "./address.js";
import { refreshTables, source } from "./grid.js";
import { choice, hide, select, subscribe, togglePins } from "./selection.js";

const ROW = ".tabulator-row:not(.tabulator-group)";
/** @type {WeakMap<Element, string>} The trial whose row the tab key reaches. */
const current = new WeakMap();

/** Shows in the rows of a table which of their trials are selected and pinned.
 * @param {HTMLElement} node */
function mark(node) {
  const lines = /** @type {HTMLElement[]} */ ([...node.querySelectorAll(`.tabulator-table > ${ROW}`)]);
  if (!lines.length) return;
  const { selected, pinned } = choice.now, wanted = current.get(node);
  for (const line of lines) {
    const trial = line.dataset.trial ?? "", isSelected = selected.has(trial);
    line.classList.toggle("selected", isSelected);
    line.classList.toggle("pinned", pinned.has(trial));
    if (trial) line.ariaSelected = String(isSelected);
    line.tabIndex = -1;
  }
  const reached = lines.find(({ dataset }) => dataset.trial === wanted) ?? lines[0];
  reached.tabIndex = 0;
}

/** Returns the row of an event on a row itself: its links and buttons keep their own keys and clicks.
 * @param {Event} event @returns {HTMLElement | null} */
const lineOf = ({ target }) => (target instanceof Element && !target.closest("a, button, input") ? target.closest(ROW) : null);

/** @param {HTMLElement} line */
function reach(line) {
  const table = line.closest(".tabulator");
  for (const other of table?.querySelectorAll(`${ROW}[tabindex='0']`) ?? []) /** @type {HTMLElement} */ (other).tabIndex = -1;
  line.tabIndex = 0;
  line.focus();
}

document.addEventListener("click", (event) => {
  const line = lineOf(event);
  if (!line || getSelection()?.type === "Range") return; // the user selected text
  reach(line);
  if (line.dataset.trial) select([line.dataset.trial], event.shiftKey || event.ctrlKey || event.metaKey);
});
document.addEventListener("focusin", ({ target }) => {
  const table = target instanceof HTMLElement && target.matches(ROW) && target.closest(".tabulator");
  if (table) current.set(table, target.dataset.trial ?? "");
});
document.addEventListener("mousedown", (event) => {
  if (event.shiftKey && lineOf(event)) event.preventDefault(); // else the browser selects text
});

document.addEventListener("keydown", (event) => {
  const line = lineOf(event), isAdded = event.shiftKey || event.ctrlKey || event.metaKey;
  if (!line || event.target !== line || event.altKey) return;
  const trial = line.dataset.trial ?? "";
  if (event.key === "ArrowDown" || event.key === "ArrowUp") move(line, event.key === "ArrowDown", event.shiftKey);
  else if (!trial) return;
  else if (event.key === " ") select([trial], isAdded);
  else if (event.key === "Enter") location.hash = addressOfTrial(trial);
  else if (isAdded) return; // for example Ctrl-P
  else if (event.key === "p") togglePins([trial]);
  else if (event.key === "h") {
    const next = /** @type {HTMLElement | null} */ (line.nextElementSibling ?? line.previousElementSibling), table = line.closest(".tabulator");
    if (table) current.set(table, next?.dataset.trial ?? "");
    hide([trial]);
  } else return;
  event.preventDefault();
});

/** Moves to the next or last row; with `isAdded`, its trial becomes selected, too.
 * @param {HTMLElement} line @param {boolean} isDown @param {boolean} isAdded */
function move(line, isDown, isAdded) {
  const next = isDown ? line.nextElementSibling : line.previousElementSibling;
  if (!(next instanceof HTMLElement)) return;
  reach(next);
  const trials = [line, next].map(({ dataset }) => dataset.trial ?? "");
  if (isAdded && trials[0] && !trials.every((trial) => choice.now.selected.has(trial))) select(trials, true);
}

/** Lets all tables show the selection and leave out hidden trials. */
export function linkTables() {
  source.drawn = mark;
  source.isShown = (row, node) => !choice.now.hidden.has(row.trial) || node.closest("dialog") !== null;
  subscribe((now, before) => {
    if (now.hidden !== before.hidden) refreshTables();
    for (const node of document.querySelectorAll(".grid")) mark(/** @type {HTMLElement} */ (node));
  });
}
