// @ts-check
// Selection in tables: a trial's rows are clicked and have keys.

import { addressOf } from "./address.js";
import { shown } from "./experiment.js";
import { refreshTables, source } from "./grid.js";
import { choice, hide, select, subscribe, togglePins } from "./selection.js";

/** @type {WeakMap<HTMLTableElement, string>} The trial whose row the tab key reaches. */
const current = new WeakMap();

/** Shows in the rows of a table which of their trials are selected and pinned.
 * @param {HTMLTableElement} table */
function mark(table) {
  const lines = table.tBodies[0]?.rows;
  if (!lines?.length || lines[0].dataset.trial === undefined) return;
  const { selected, pinned } = choice.now, focused = document.activeElement;
  const wanted = current.get(table);
  /** @type {HTMLElement | undefined} */
  let reached;
  for (const line of lines) {
    const trial = line.dataset.trial ?? "", isSelected = selected.has(trial), isPinned = pinned.has(trial);
    if (line.classList.contains("selected") !== isSelected) line.classList.toggle("selected", isSelected);
    if (line.classList.contains("pinned") !== isPinned) line.classList.toggle("pinned", isPinned);
    if (line.ariaSelected !== String(isSelected)) line.ariaSelected = String(isSelected);
    if (line.getAttribute("tabindex") !== "-1") line.tabIndex = -1;
    if (trial === wanted) reached ??= line;
  }
  reached ??= lines[0];
  reached.tabIndex = 0;
  // An update may have moved the focused row's trial to another row.
  if (focused instanceof HTMLTableRowElement && focused !== reached && table.contains(focused)) reached.focus();
}

/** Returns the row of an event on a row itself: its links and buttons keep their own keys and clicks.
 * @param {Event} event */
function lineOf({ target }) {
  if (!(target instanceof Element) || target.closest("a, button, input, thead")) return null;
  const line = target.closest("tr");
  return line?.dataset.trial === undefined ? null : line;
}

/** @param {HTMLTableRowElement} line */
function reach(line) {
  const table = line.closest("table");
  if (!table || line.dataset.trial === undefined) return;
  current.set(table, line.dataset.trial);
  for (const other of table.querySelectorAll("tr[tabindex='0']")) /** @type {HTMLElement} */ (other).tabIndex = -1;
  line.tabIndex = 0;
  line.focus();
}

document.addEventListener("click", (event) => {
  const line = lineOf(event);
  if (!line || getSelection()?.type === "Range") return; // the user selected text
  reach(line);
  select([line.dataset.trial ?? ""], event.shiftKey || event.ctrlKey || event.metaKey);
});
document.addEventListener("focusin", ({ target }) => {
  const table = target instanceof HTMLTableRowElement ? target.closest("table") : null;
  if (table) current.set(table, /** @type {HTMLElement} */ (target).dataset.trial ?? "");
});
document.addEventListener("mousedown", (event) => {
  if (event.shiftKey && lineOf(event)) event.preventDefault(); // else the browser selects text
});

document.addEventListener("keydown", (event) => {
  const line = lineOf(event), isAdded = event.shiftKey || event.ctrlKey || event.metaKey;
  if (!line || event.target !== line || event.altKey) return;
  const trial = line.dataset.trial ?? "";
  if (event.key === " ") select([trial], isAdded);
  else if (event.key === "Enter") location.hash = addressOf(shown.now?.name ?? "", trial);
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") move(line, event.key === "ArrowDown", event.shiftKey);
  else if (isAdded) return; // for example Ctrl-P
  else if (event.key === "p") togglePins([trial]);
  else if (event.key === "h") {
    const next = line.nextElementSibling ?? line.previousElementSibling, table = line.closest("table");
    if (table) current.set(table, /** @type {HTMLElement | null} */ (next)?.dataset.trial ?? "");
    hide([trial]);
  } else return;
  event.preventDefault();
});

/** Moves to the next or last row; with `isAdded`, its trial becomes selected, too.
 * @param {HTMLTableRowElement} line @param {boolean} isDown @param {boolean} isAdded */
function move(line, isDown, isAdded) {
  const next = isDown ? line.nextElementSibling : line.previousElementSibling;
  if (!(next instanceof HTMLTableRowElement)) return;
  reach(next);
  const trials = [line, next].map(({ dataset }) => dataset.trial ?? "");
  if (isAdded && !trials.every((trial) => choice.now.selected.has(trial))) select(trials, true);
}

/** Lets all tables show the selection and leave out hidden trials. */
export function linkTables() {
  source.drawn = mark;
  source.isShown = (row, table) => !choice.now.hidden.has(row.trial) || table.closest("dialog") !== null;
  subscribe((now, before) => {
    if (now.hidden !== before.hidden) refreshTables();
    else for (const table of document.querySelectorAll("table")) mark(table);
  });
}
