// @ts-check
// The bar at the bottom of the page: what is selected, pinned and hidden, what can be done with it, and its keys.

import { addressOf, addressOfTrial, readAddress, writePins } from "./address.js";
import { at, counted, el, set } from "./dom.js";
import { shown } from "./experiment.js";
import { brushing } from "./linked.js";
import { showSection } from "./tabs.js";
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

/** Shows what is selected, pinned and hidden. */
export function drawSelection() {
  const { selected, pinned, hidden } = choice.now;
  const named = [...selected].slice(0, MOST_NAMED).join(", ");
  set(at("selection-count"), selected.size ? `${counted(selected.size, "trial")} selected: ${named}` +
    (selected.size > MOST_NAMED ? ", ..." : "") : "Click a trial in a figure or table to select it.");
  at("selection-actions").hidden = !selected.size;
  const isPinned = [...selected].every((trial) => pinned.has(trial));
  set(at("selection-pin"), isPinned ? "unpin" : "pin");
  at("pins").hidden = !pinned.size;
  set(at("pin-count"), `${pinned.size} pinned:`);
  drawPins([...pinned]);
  at("pin-show").hidden = pinned.size < 2;
  at("hidden-trials").hidden = !hidden.size;
  set(at("hidden-count"), hidden.size ? `${counted(hidden.size, "trial")} hidden` : "");
}

/** @param {string[]} pinned */
function drawPins(pinned) {
  const list = at("pin-list");
  if ([...list.children].map((each) => each.textContent).join("\n") === pinned.join("\n")) return;
  list.replaceChildren(...pinned.map((trial) => el("a", { href: addressOfTrial(trial) }, trial)));
}

at("selection-pin").addEventListener("click", () => togglePins([...choice.now.selected]));
at("selection-hide").addEventListener("click", () => hide(choice.now.selected));
at("selection-only").addEventListener("click", () => {
  const { selected } = choice.now, all = shown.now?.loaded?.trials ?? [];
  hide(all.map(({ trial }) => trial).filter((trial) => !selected.has(trial)));
});
at("selection-clear").addEventListener("click", clear);
at("pin-show").addEventListener("click", () => {
  const address = addressOf(readAddress().name, "", "pinned");
  if (location.hash.split("?")[0] === address) showSection("pinned");
  else location.hash = address;
});
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
at("selection-help").append(...HELP.flatMap(([action, meaning]) => [el("dt", {}, el("kbd", {}, action)), el("dd", {}, meaning)]));
document.addEventListener("keydown", (event) => {
  const isTyping = event.target instanceof Element && event.target.closest("input, select, textarea, dialog[open]");
  if (event.key === "Escape" && !isTyping && !document.querySelector("dialog[open]")) clear();
});
subscribe((now, before) => {
  if (now.pinned !== before.pinned && shown.now && readAddress().name === shown.now.name) writePins(now.pinned);
  drawSelection();
});
