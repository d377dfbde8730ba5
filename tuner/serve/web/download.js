// @ts-check
// Files of what the page shows: a table's rows as CSV or JSON, a figure as PNG or SVG.

import { saveImage } from "./look.js";

/** @template Row @typedef {import("./filter.js").Field<Row>} Field */

// A spreadsheet takes a text that starts with one of these for a formula. `'` marks such a text, as in trials.csv.
const FORMULA = /^[=+\-@\t\r\n'＝＋－＠]/;

/**
 * Returns the rows as CSV with all digits, and each text in quotes.
 *
 * @template Row
 * @param {Field<Row>[]} fields
 * @param {Row[]} rows
 */
export function csvOf(fields, rows) {
  const lines = [fields.map(({ head }) => cell(head)), ...rows.map((row) => fields.map(({ value }) => cell(value(row))))];
  return lines.map((line) => `${line.join(",")}\n`).join("");
}

/** @param {unknown} value */
function cell(value) {
  if (value === null || value === undefined || value === "") return "";
  if (typeof value === "number") return String(value);
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  return `"${(FORMULA.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
}

/**
 * Returns the rows as a JSON list of objects: heading -> value.
 *
 * @template Row
 * @param {Field<Row>[]} fields
 * @param {Row[]} rows
 */
export const jsonOf = (fields, rows) =>
  `${JSON.stringify(rows.map((row) => Object.fromEntries(fields.map(({ head, value }) => [head, value(row) ?? null]))), null, 1)}\n`;

/** @param {string} name @param {string} kind @param {string} text */
export function save(name, kind, text) {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // a browser may ask first where to save
}

/**
 * Adds buttons below a figure that save it; the figure's own buttons cannot be reached by keyboard.
 *
 * @param {HTMLElement} figure
 */
export function addImageButtons(figure) {
  const line = document.createElement("p");
  line.className = "controls images";
  for (const format of /** @type {const} */ (["png", "svg"])) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `save as ${format.toUpperCase()}`;
    button.ariaLabel = `${button.textContent}: figure ${figure.id}`;
    button.addEventListener("click", () => saveImage(figure, format));
    line.append(button);
  }
  figure.after(line);
}
