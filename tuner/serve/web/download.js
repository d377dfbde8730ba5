// @ts-check
// Files of what the page shows: a table's rows as CSV or JSON, a figure as PNG, SVG or CSV.

import { button, el, plain } from "./dom.js";
import { fileOf, saveImage } from "./look.js";

/** @template Row @typedef {import("./filter.js").Field<Row>} Field */

// A spreadsheet takes a text that starts with one of these for a formula. `'` marks such a text, as in trials.csv.
const FORMULA = /^[=+\-@\t\r\n'＝＋－＠]/;

/** Returns the rows as CSV with all digits, and each text in quotes.
 * @template Row @param {Field<Row>[]} fields @param {Row[]} rows */
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

/** Returns the rows as a JSON list of objects: heading -> value.
 * @template Row @param {Field<Row>[]} fields @param {Row[]} rows */
export const jsonOf = (fields, rows) =>
  `${JSON.stringify(rows.map((row) => Object.fromEntries(fields.map(({ head, value }) => [head, value(row) ?? null]))), null, 1)}\n`;

const TYPES = { csv: "text/csv;charset=utf-8", json: "application/json" };
/** @param {string} name @param {"csv" | "json"} kind @param {string} text */
export function save(name, kind, text) {
  const address = URL.createObjectURL(new Blob([text], { type: TYPES[kind] }));
  el("a", { href: address, download: `${name}.${kind}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // a browser may ask first where to save
}

/** Returns the data of a figure as rows: of each trace its name, and of each of its points the trial and what places it.
 * @param {any} figure a node that Plotly has drawn */
function pointsOf({ data, layout }) {
  const scales = layout.meta?.scales ?? {};
  /** @param {any} trace @param {"x" | "y"} side */
  const axis = (trace, side) => {
    const name = `${side}axis${(trace[`${side}axis`] ?? side).slice(1)}`, own = layout[name] ?? {};
    return { ...own, scale: scales[name], head: plain((own.title ?? (own.matches && layout[`${side}axis`].title))?.text ?? "").replace(/<br>.*| \(clipped.*/, "") || side };
  };
  return data.filter((/** @type {any} */ { visible }) => visible !== false).flatMap((/** @type {any} */ trace) => {
    const { type, name, customdata, dimensions, z } = trace, [x, y] = [axis(trace, "x"), axis(trace, "y")], series = plain(name ?? "") || type;
    if (z) return trace.y.flatMap((/** @type {unknown} */ up, /** @type {number} */ j) => trace.x.map((/** @type {unknown} */ across, /** @type {number} */ i) =>
      ({ series, [x.head]: valueAt(across, x), [y.head]: valueAt(up, y), surface: z[j][i] })));
    /** @type {any[][]} */
    const lists = dimensions ? dimensions.map((/** @type {any} */ each, /** @type {number} */ i) => [plain(each.label), each.values, { ...each, scale: scales[i] }])
      : [[x.head, trace.base ? trace.x.map((/** @type {number} */ length, /** @type {number} */ i) => trace.base[i] + length) : trace.x, x], [y.head, trace.y, y], ...QUANTILES.map((key) => [key, trace[key], {}]), ["from", trace.base, {}],
        ["plus", trace.error_x?.array, {}], ["minus", trace.error_x?.arrayminus, {}]];
    const known = lists.filter(([, list]) => Array.isArray(list));
    return (known[0]?.[1] ?? []).flatMap((/** @type {unknown} */ _, /** @type {number} */ i) => {
      const values = Object.fromEntries(known.map(([head, list, own]) => [head, valueAt(list[i], own)]));
      return Object.values(values).every((value) => value === null) ? [] : [{ series, trial: plain(customdata?.[i] ?? ""), ...values }];
    });
  });
}
const QUANTILES = ["lowerfence", "q1", "median", "q3", "upperfence"];

/** Returns the value at a position of an axis: positions are log10 of values, or numbers of ticks, if its scale says so.
 * @param {unknown} position @param {any} axis */
function valueAt(position, { scale, tickvals = [], ticktext = [] }) {
  if (typeof position !== "number" || !scale) return position;
  if (ticktext[tickvals.indexOf(position)] === "(none)") return null;
  return scale === "log" ? Number((10 ** position).toPrecision(12)) : plain(ticktext[tickvals.indexOf(Math.round(position))] ?? "");
}

/** Adds buttons below a figure that save it; the figure's own buttons cannot be reached by keyboard.
 * @param {HTMLElement} figure */
export function addFigureButtons(figure) {
  const line = el("p", { className: "controls images" });
  for (const format of /** @type {const} */ (["png", "svg"])) {
    line.append(button(`save as ${format.toUpperCase()}`, () => saveImage(figure, format), `save as ${format.toUpperCase()}: figure ${figure.id}`));
  }
  line.append(button("save as CSV", () => saveData(figure), `save as CSV: data of figure ${figure.id}`));
  figure.after(line);
}

/** @param {HTMLElement} figure */
function saveData(figure) {
  const rows = pointsOf(figure), heads = [...new Set(rows.flatMap(Object.keys))];
  const fields = heads.map((head) => ({ head, value: (/** @type {any} */ row) => row[head], shown: String }));
  save(fileOf(figure), "csv", csvOf(fields, rows));
}
