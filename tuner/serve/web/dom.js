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

/** @param {unknown} value */
export const number = (value) => (typeof value === "number" ? String(Number(value.toPrecision(5))) : String(value ?? ""));

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

/**
 * Formats a trial's parameters in one line: `l1 64, lr 0.00123, opt/momentum 0.9`.
 *
 * @param {import("./api.js").Config} config
 * @returns {string}
 */
export function parameters(config, prefix = "") {
  return Object.entries(config).map(([name, value]) => {
    if (typeof value !== "object" || value === null) return `${prefix}${name} ${number(value)}`;
    if (Array.isArray(value)) return `${prefix}${name} ${JSON.stringify(value)}`;
    return parameters(/** @type {import("./api.js").Config} */ (value), `${prefix}${name}/`);
  }).join(", ");
}

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
