// @ts-check
// The page's elements, and numbers, times and parameters as text.

/**
 * Returns the element with this id.
 *
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} id
 * @param {new () => T} [kind] the element's class, if the caller uses more than HTMLElement has
 * @returns {T}
 */
export function at(id, kind) {
  const node = document.getElementById(id);
  if (!(node instanceof (kind ?? HTMLElement))) throw new Error(`the page has no ${kind?.name ?? "element"} #${id}`);
  return /** @type {T} */ (node);
}

/**
 * Sets an element's text. It never replaces equal text, so that selection and scroll position stay.
 *
 * @param {Node} node
 * @param {unknown} text
 */
export function set(node, text) {
  const wanted = String(text ?? "");
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** Formats a number with five significant digits, an integer with all its digits, and anything else as text.
 * @param {unknown} value */
export const number = (value) =>
  (typeof value !== "number" || Number.isInteger(value) ? String(value ?? "") : String(Number(value.toPrecision(5))));

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

/** Formats the time that one trial took: 0.12 s, where `duration` rounds to 0 s.
 * @param {number} seconds */
export const trialDuration = (seconds) =>
  (seconds > 0 && seconds < 1 ? `${Number(seconds.toPrecision(2))} s` : duration(seconds));

const UNITS = ["bytes", "kB", "MB", "GB", "TB"];
/** @param {number} count */
export function bytes(count) {
  const power = Math.min(UNITS.length - 1, Math.floor(Math.log10(Math.max(1, count)) / 3));
  return `${Number((count / 1000 ** power).toPrecision(3))} ${UNITS[power]}`;
}

/**
 * Flattens a trial's parameters: `{"opt": {"momentum": 0.9}}` gives `opt/momentum`, 0.9.
 *
 * @param {import("./api.js").Config} config
 * @returns {[string, unknown][]}
 */
export const flat = (config, prefix = "") => Object.entries(config).flatMap(([name, value]) =>
  (typeof value !== "object" || value === null || Array.isArray(value) ? [[prefix + name, value]]
    : flat(/** @type {import("./api.js").Config} */ (value), `${prefix}${name}/`)));

/** Formats a trial's parameters in one line: `l1 64, lr 0.00123, opt/momentum 0.9`.
 * @param {import("./api.js").Config} config */
export const parameters = (config) =>
  flat(config).map(([name, value]) => `${name} ${Array.isArray(value) ? JSON.stringify(value) : number(value)}`).join(", ");

/**
 * Does some work and shows its error at the top of the page; hides the error of earlier work if there is none.
 *
 * @param {() => unknown} work
 */
export async function attempt(work) {
  try {
    await work();
    at("problem").hidden = true;
  } catch (error) {
    set(at("problem"), error instanceof Error ? error.message : error);
    at("problem").hidden = false;
  }
}
