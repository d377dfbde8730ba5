// @ts-check
// The bar at the bottom of the page: what is selected, pinned and hidden, what can be done with it, and its keys.

import { addressOf, readAddress, writePins } from "./address.js";
import { at, set } from "./dom.js";
import { shown } from "./experiment.js";
import { brushing } from "./linked.js";
import { showSection } from "./sections.js";
import { MOST_PINNED, choice, clear, hide, setPins, showHidden, subscribe, togglePins } from "./selection.js";

const MOST_NAMED = 3; // selected trials that the bar names
const HELP = [
  ["click", "selects the trial in all figures and tables; with Shift or Ctrl in addition to the others, or not any more"],
  ["drag", "in parallel coordinates selects the lines through that part of an axis; in other figures if the box is checked"],
  ["Escape", "selects nothing"],
  ["Tab, arrows", "reach a table and its rows; Shift with an arrow selects on the way"],
  ["Space", "selects the row's trial; with Shift or Ctrl in addition"],
  ["p", `pins the row's trial, at most ${MOST_PINNED}: pins survive clicks and are in the page's address`],
  ["h", "hides the row's trial in figures and tables; boxes, bands, surfaces and counts still include it"],
  ["Enter", "opens the row's trial"],
];

/** @param {number} count */
const trials = (count) => (count === 1 ? "1 trial" : `${count} trials`);

/** Shows what is selected, pinned and hidden. */
export function drawSelection() {
  const { selected, pinned, hidden } = choice.now;
  const named = [...selected].slice(0, MOST_NAMED).join(", ");
  set(at("selection-count"), selected.size ? `${trials(selected.size)} selected: ${named}` +
    (selected.size > MOST_NAMED ? ", ..." : "") : "Click a trial in a figure or table to select it.");
  at("selection-actions").hidden = !selected.size;
  const isPinned = [...selected].every((trial) => pinned.has(trial));
  set(at("selection-pin"), isPinned ? "unpin" : "pin");
  at("pins").hidden = !pinned.size;
  set(at("pin-count"), `${pinned.size} pinned:`);
  drawPins([...pinned]);
  at("pin-show").hidden = pinned.size < 2;
  at("hidden-trials").hidden = !hidden.size;
  set(at("hidden-count"), hidden.size ? `${trials(hidden.size)} hidden` : "");
}

/** @param {string[]} pinned */
function drawPins(pinned) {
  const list = at("pin-list");
  if ([...list.children].map((each) => each.textContent).join("\n") === pinned.join("\n")) return;
  list.replaceChildren(...pinned.map((trial) => {
    const link = document.createElement("a");
    link.href = addressOf(readAddress().name, trial);
    link.textContent = trial;
    return link;
  }));
}

at("selection-pin").addEventListener("click", () => togglePins([...choice.now.selected]));
at("selection-hide").addEventListener("click", () => hide(choice.now.selected));
at("selection-only").addEventListener("click", () => {
  const { selected } = choice.now, all = shown.now?.loaded?.trials ?? [];
  hide(all.map(({ trial }) => trial).filter((trial) => !selected.has(trial)));
});
at("selection-clear").addEventListener("click", clear);
at("pin-show").addEventListener("click", () => showSection("pinned"));
at("pin-clear").addEventListener("click", () => setPins([]));
at("hidden-show").addEventListener("click", showHidden);
at("drag-selects").addEventListener("change", () => {
  brushing.isOn = at("drag-selects", HTMLInputElement).checked;
  at("one").classList.toggle("brushing", brushing.isOn);
});
at("selection-ask").addEventListener("click", () => {
  const help = at("selection-help");
  help.hidden = !help.hidden;
  at("selection-ask").ariaExpanded = String(!help.hidden);
});
for (const [action, meaning] of HELP) {
  const term = at("selection-help").appendChild(document.createElement("dt"));
  term.appendChild(document.createElement("kbd")).textContent = action;
  at("selection-help").appendChild(document.createElement("dd")).textContent = meaning;
}
document.addEventListener("keydown", (event) => {
  const isTyping = event.target instanceof Element && event.target.closest("input, select, textarea, dialog[open]");
  if (event.key === "Escape" && !isTyping && !document.querySelector("dialog[open]")) clear();
});
subscribe((now, before) => {
  if (now.pinned !== before.pinned && shown.now && readAddress().name === shown.now.name) writePins(now.pinned);
  drawSelection();
});
