// @ts-check
// The page's elements, and numbers, times and parameters as text.

/** Returns the element with this id.
 * @template {HTMLElement} [T=HTMLElement] @param {string} id
 * @param {new () => T} [kind] the element's class, if the caller uses more than HTMLElement has @returns {T} */
export function at(id, kind) {
  const node = document.getElementById(id);
  if (!(node instanceof (kind ?? HTMLElement))) throw new Error(`the page has no ${kind?.name ?? "element"} #${id}`);
  return /** @type {T} */ (node);
}

/** Makes an element.
 * @template {keyof HTMLElementTagNameMap} Tag @param {Tag} tag
 * @param {{[name: string]: unknown}} properties of the element, such as `className`
 * @param {...(Node | string)} children @returns {HTMLElementTagNameMap[Tag]} */
export function el(tag, properties, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

/** @param {string} text @param {() => void} onclick @param {string} ariaLabel */
export const button = (text, onclick, ariaLabel = text) => el("button", { type: "button", onclick, ariaLabel }, text);

/** Sets an element's text. It never replaces equal text, so that selection and scroll position stay.
 * @param {Node} node @param {unknown} text */
export function set(node, text) {
  const wanted = String(text ?? "");
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** Sets the text of the element with this id, and hides it if the text is empty.
 * @param {string} id @param {unknown} text */
export function tell(id, text) {
  set(at(id), text);
  at(id).hidden = !at(id).textContent;
}

/** Offers choices in a select.
 * @param {string} id @param {string[][]} choices value and text of each @param {string} chosen */
export function offer(id, choices, chosen) {
  const box = at(id, HTMLSelectElement);
  if (String([...box.options].map(({ value, text }) => [value, text])) !== String(choices)) {
    box.replaceChildren(...choices.map(([value, text]) => new Option(text, value)));
  }
  box.value = chosen;
}

/** Formats a number with five significant digits, an integer with all its digits, and anything else as text.
 * @param {unknown} value */
export const number = (value) =>
  (typeof value !== "number" || Number.isInteger(value) ? String(value ?? "") : String(Number(value.toPrecision(5))));

/** @param {number} count @param {string} noun */
export const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** @param {number | null} s */
export const moment = (s) =>
  (s ? new Date(s * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }) : "");

/** @param {number} seconds */
export function duration(seconds) {
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

/** Formats the time that one trial took: 0.12 s or 1.5 s, where `duration` rounds to whole seconds.
 * @param {number} seconds */
export const trialDuration = (seconds) =>
  (seconds > 0 && seconds < 10 ? `${Number(seconds.toPrecision(2))} s` : duration(seconds));

const UNITS = ["bytes", "kB", "MB", "GB", "TB"];
/** @param {number} count */
export function bytes(count) {
  const power = Math.min(UNITS.length - 1, Math.floor(Math.log10(Math.max(1, count)) / 3));
  return `${Number((count / 1000 ** power).toPrecision(3))} ${UNITS[power]}`;
}

/** Flattens a trial's parameters: `{"opt": {"momentum": 0.9}}` gives `opt/momentum`, 0.9.
 * @param {import("./api.js").Config} config @returns {[string, unknown][]} */
export const flat = (config, prefix = "") => Object.entries(config).flatMap(([name, value]) =>
  (typeof value !== "object" || value === null || Array.isArray(value) ? [[prefix + name, value]]
    : flat(/** @type {import("./api.js").Config} */ (value), `${prefix}${name}/`)));

/** @param {unknown} value of a parameter */
export const shownAs = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : number(value));

/** Formats a trial's parameters in one line: `l1 64, lr 0.00123, opt/momentum 0.9`.
 * @param {import("./api.js").Config} config */
export const parameters = (config) => flat(config).map(([name, value]) => `${name} ${shownAs(value)}`).join(", ");

const ENTITIES = new Map([["&lt;", "<"], ["&gt;", ">"], ["&amp;", "&"], ["&quot;", '"'], ["&#x27;", "'"]]);
/** Returns a text of a figure as the tables have it: Plotly reads texts as HTML, so figures have escaped ones.
 * @param {string} text */
export const plain = (text) => text.replace(/&(lt|gt|amp|quot|#x27);/g, (entity) => ENTITIES.get(entity) ?? entity);

/** Escapes a text as figures need it.
 * @param {string} content */
export const escaped = (content) => [...ENTITIES].reduceRight((text, [entity, sign]) => (sign === "&" ? text : text.replaceAll(sign, entity)),
  content.replaceAll("&", "&amp;"));

let errors = 0; // that `attempt` has shown

/** Does some work and shows its error at the top of the page; hides an error that was shown before the work began if there is none.
 * @param {() => unknown} work */
export async function attempt(work) {
  const before = errors;
  try {
    await work();
    if (errors === before) tell("problem", "");
  } catch (error) {
    errors += 1;
    tell("problem", error instanceof Error ? error.message : error);
  }
}
