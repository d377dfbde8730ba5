// @ts-check
// The tabs of an experiment's page. Each has an address, `#NAME//rungs`, and so does each section, `#NAME//timeline`.

import { addressOf } from "./address.js";
import { at, el } from "./dom.js";

const TABS = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#one > .tab"));
const LINKS = at("tabs");

/** @param {HTMLElement} tab */
const nameOf = (tab) => tab.id.replace(/^tab-/, "");

/** Returns the tab that an address names, or that has the section which it names; the first tab if there is none.
 * @param {string} place */
const tabAt = (place) => [...TABS].find((tab) => nameOf(tab) === place)
  ?? /** @type {HTMLElement | undefined} */ (document.getElementById(`${place}-section`)?.closest(".tab")) ?? TABS[0];

/** Returns the figures of the tab that an address names.
 * @param {string} place @param {string[]} figures */
export const figuresAt = (place, figures) => figures.filter((name) => tabAt(place).querySelector(`#${name}`));

/** Opens the tab that an address names.
 * @param {string} name of the experiment @param {string} place */
export function openTab(name, place) {
  const open = tabAt(place), isOther = open.hidden;
  for (const tab of TABS) tab.hidden = tab !== open;
  TABS.forEach((tab, i) => { // the links stay: one of them may have the keyboard's focus
    const link = LINKS.querySelectorAll("a")[i] ?? LINKS.appendChild(el("li", {}, el("a", {}, tab.dataset.title ?? ""))).firstChild;
    Object.assign(link, { href: addressOf(name, "", i ? nameOf(tab) : ""), ariaCurrent: tab === open ? "page" : null });
  });
  if (isOther) window.scrollTo(0, Math.min(scrollY, open.offsetTop - LINKS.offsetHeight));
}

/** Opens a section if it is closed, scrolls to it and puts the keyboard's focus there. A tab itself is no section.
 * @param {string} place */
export function showSection(place) {
  const section = document.getElementById(`${place}-section`);
  if (!section || section.hidden || document.getElementById(`tab-${place}`)) return;
  if (section instanceof HTMLDetailsElement) section.open = true;
  const heading = /** @type {HTMLElement} */ (section.querySelector(":scope > summary") ?? section.querySelector("h2") ?? section);
  if (heading.tagName !== "SUMMARY") heading.tabIndex = -1;
  heading.focus({ preventScroll: true });
  section.scrollIntoView();
}
