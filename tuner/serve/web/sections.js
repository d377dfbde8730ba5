// @ts-check
// The links to the sections of an experiment: one for each section that is shown.

import { at, set } from "./dom.js";
import { shown } from "./experiment.js";

const PAGE = at("one"), NAVIGATION = at("sections");
const SECTIONS = "#one > :is(section, details)[id]";

/**
 * Opens a section if it is closed, scrolls to it and puts the keyboard's focus there.
 *
 * @param {string} id without the ending `-section`
 */
export function showSection(id) {
  const section = [...document.querySelectorAll(SECTIONS)].find((each) => nameOf(each) === id);
  if (!(section instanceof HTMLElement) || section.hidden) return;
  if (section instanceof HTMLDetailsElement) section.open = true;
  const heading = /** @type {HTMLElement} */ (section.querySelector("summary") ?? section.querySelector("h2") ?? section);
  if (heading.tagName !== "SUMMARY") heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
  section.scrollIntoView();
}

/** @param {Element} section */
const nameOf = (section) => section.id.replace(/-section$/, "");

function drawLinks() {
  const sections = [...document.querySelectorAll(SECTIONS)].filter((each) => !(/** @type {HTMLElement} */ (each).hidden));
  const list = sections.filter((each) => each.querySelector("h2"));
  while (NAVIGATION.children.length > list.length) NAVIGATION.lastChild?.remove();
  list.forEach((section, i) => {
    const item = NAVIGATION.children[i] ?? NAVIGATION.appendChild(document.createElement("li"));
    const link = /** @type {HTMLAnchorElement} */ (item.firstChild ?? item.appendChild(document.createElement("a")));
    set(link, section.querySelector("h2")?.textContent);
    link.href = `#${encodeURIComponent(shown.now?.name ?? "")}//${nameOf(section)}`;
  });
}

new MutationObserver(drawLinks).observe(PAGE, { attributeFilter: ["hidden"], childList: true, subtree: true });
NAVIGATION.addEventListener("click", ({ target }) => {
  // The browser tells of no change of the address if it is the same again.
  if (target instanceof HTMLAnchorElement && target.hash === location.hash) showSection(target.hash.split("/")[2]);
});
