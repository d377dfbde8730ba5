// @ts-check
// How a table works: it draws rows as they are scrolled to, sorts, filters, and saves what it shows.

import { attempt, number, set } from "./dom.js";
import { csvOf, jsonOf, save } from "./download.js";
import { GRAMMAR, filterOf, numeric } from "./filter.js";

/**
 * A column. It has `value`, `text` or both; each is made from the other if it is missing. `look` is a CSS class, or a
 * function of the row that returns one; numbers are aligned to the right. A column with `link` shows links, and one with
 * `tick` shows checkboxes, which are not saved. A column with `isHead` has the headings of the rows. A heading with `href`
 * is a link, and does not sort.
 *
 * @template Row
 * @typedef {object} Column
 * @property {string} head unique in its table
 * @property {(row: Row) => unknown} [value] what the column is sorted, filtered and saved by
 * @property {(row: Row) => unknown} [text] what a cell shows
 * @property {string | ((row: Row) => string)} [look]
 * @property {(row: Row) => string} [link]
 * @property {{has: (row: Row) => boolean, set: (row: Row, is: boolean) => void, about: (row: Row) => string}} [tick]
 * @property {boolean} [isHead]
 * @property {string} [href]
 * @property {string} [about] the heading's tooltip
 */
/** @typedef {{head: string, descending: boolean}} Order */

const MOST_PRINTED = 1000; // rows on paper
const CHUNK = 100; // rows that are drawn at once: 10,000 rows take seconds
const collator = new Intl.Collator(undefined, { numeric: true });

/** @type {WeakMap<HTMLTableElement, Grid>} */
const grids = new WeakMap();
/** @type {Set<Grid>} */
const known = new Set();
/** Loads the rows that are missing: the page sets `all`, and `name` to the start of the saved files' names. `isShown`
 * says which rows a table has at all, and `drawn` is called with each table that was drawn. */
export const source = {
  all: async () => {}, name: () => "",
  /** @type {(row: any, table: HTMLTableElement) => boolean} */ isShown: () => true,
  /** @type {(table: HTMLTableElement) => void} */ drawn: () => {},
};

/**
 * Shows rows in a table, in the order and with the filter that the user chose.
 *
 * @template Row
 * @param {HTMLTableElement} table
 * @param {Column<Row>[]} columns
 * @param {Row[]} rows the loaded rows
 * @param {number} total the number of all rows
 */
export function fill(table, columns, rows, total = rows.length) {
  let grid = grids.get(table);
  if (!grid) {
    grid = new Grid(table);
    grids.set(table, grid);
    known.add(grid);
  }
  grid.show(/** @type {Column<any>[]} */ (columns), rows, total);
}

/** Draws all tables again: `source.isShown` has changed. */
export function refreshTables() {
  for (const grid of known) grid.update();
}

/** Forgets orders, filters and scroll positions: the tables will show another experiment. The list keeps its own. */
export function resetTables() {
  for (const grid of known) if (grid.table.id !== "experiments") grid.reset();
}

class Grid {
  /** @type {Column<any>[]} */ #columns = [];
  /** @type {import("./filter.js").Field<any>[]} */ #fields = [];
  /** @type {any[]} The loaded rows. */ #rows = [];
  /** @type {any[]} Those that match the filter, in order. */ #found = [];
  /** @type {Order | null} */ #order = null;
  #total = 0;
  #drawn = CHUNK;
  /** @type {Tools | null} */ #tools;

  /** @param {HTMLTableElement} table */
  constructor(table) {
    this.table = table;
    this.scroller = table.closest(".scroll");
    this.#tools = toolsOf(table, (kind) => this.#save(kind), () => this.#restart(true));
    this.scroller?.addEventListener("scroll", () => this.#extend());
    window.addEventListener("beforeprint", () => {
      this.#drawn = Math.max(this.#drawn, Math.min(this.#found.length, MOST_PRINTED));
      this.#draw();
      const printed = Math.min(this.#drawn, this.#found.length), all = Math.max(this.#found.length, this.#isFiltered ? 0 : this.#total);
      const missing = this.#rows.length < this.#total ? ` The page has loaded ${this.#rows.length} of ${this.#total}; scroll to the end to load all.` : "";
      this.table.createCaption().textContent = printed < all || missing ? `${printed} of ${all} rows are printed.${missing}` : "";
    });
  }

  get #isFiltered() {
    return Boolean(this.#tools?.box.value.trim());
  }

  /** @param {Column<any>[]} columns @param {any[]} rows @param {number} total */
  show(columns, rows, total) {
    if (columns.map(({ head }) => head).join("\n") !== this.#columns.map(({ head }) => head).join("\n")) {
      this.#columns = columns;
      this.#addHead();
    }
    this.#columns = columns;
    this.#fields = columns.map(fieldOf);
    this.#rows = rows;
    this.#total = total;
    this.update();
  }

  reset() {
    this.#order = null;
    if (this.#tools) this.#tools.box.value = "";
    this.#columns = [];
    this.#rows = this.#found = [];
    this.#drawn = CHUNK;
    this.scroller?.scrollTo(0, 0);
  }

  update() {
    const { rows, hint, problem } = this.#filtered();
    this.#found = sorted(rows, this.#fields, this.#order);
    this.#draw();
    this.#tools?.tell(this.#found.length, this.#rows.length, this.#total, hint, problem);
  }

  /** Shows the first rows of a new order or filter.
   * @param {boolean} isFilter */
  #restart(isFilter = false) {
    this.#drawn = CHUNK;
    this.scroller?.scrollTo({ top: 0, left: isFilter ? 0 : this.scroller.scrollLeft });
    this.update();
    if (this.#rows.length < this.#total) attempt(source.all);
  }

  #filtered() {
    const text = this.#tools?.box.value ?? "";
    const own = this.#rows.filter((row) => source.isShown(row, this.table));
    if (!text.trim()) return { rows: own, hint: "", problem: "" };
    try {
      const { test, hint } = filterOf(text, this.#fields);
      return { rows: own.filter(test), hint, problem: "" };
    } catch (error) {
      return { rows: own, hint: "", problem: error instanceof Error ? error.message : String(error) };
    }
  }

  /** Draws more rows when the user comes to the last ones. */
  #extend() {
    const box = this.scroller;
    if (!box || box.scrollTop + 2 * box.clientHeight < box.scrollHeight) return;
    if (this.#drawn < this.#found.length) {
      this.#drawn += CHUNK;
      this.#draw();
    } else if (this.#rows.length < this.#total) attempt(source.all);
  }

  /** Draws the first rows; cells that have not changed are not replaced. */
  #draw() {
    const body = this.table.tBodies[0];
    if (!body) return;
    const rows = this.#found.slice(0, this.#drawn);
    this.table.ariaRowCount = String(this.#found.length + 1);
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((row, i) => {
      const line = body.rows[i] ?? body.insertRow();
      line.ariaRowIndex = String(i + 2);
      if (typeof row.trial === "string") line.dataset.trial = row.trial;
      this.#columns.forEach(({ look, link, tick, isHead }, j) => {
        const cell = line.cells[j] ?? line.appendChild(isHead ? rowHead() : document.createElement("td"));
        const text = this.#fields[j].shown(row);
        if (tick) {
          const box = /** @type {HTMLInputElement} */ (cell.firstChild ?? cell.appendChild(document.createElement("input")));
          Object.assign(box, { type: "checkbox", checked: tick.has(row), ariaLabel: tick.about(row),
            onchange: () => tick.set(row, box.checked) });
          cell.className = "tick";
        } else if (link) {
          const target = /** @type {HTMLAnchorElement} */ (cell.firstChild ?? cell.appendChild(document.createElement("a")));
          set(target, text);
          target.href = link(row);
        } else {
          set(cell, text);
          cell.className = (typeof look === "function" ? look(row) : look) ?? "";
          if (look === "value" && cell.title !== text) cell.title = text; // the cell may be too narrow for it
        }
      });
    });
    source.drawn(this.table);
  }

  #addHead() {
    this.table.tHead?.remove();
    this.table.replaceChildren();
    const line = this.table.createTHead().insertRow();
    for (const { head, look, about, href } of this.#columns) {
      const cell = line.appendChild(document.createElement("th"));
      cell.scope = "col";
      cell.title = about ?? "";
      if (look === "number") cell.className = look;
      cell.append(href ? Object.assign(document.createElement("a"), { href, textContent: head }) : this.#sorter(head));
    }
    this.#mark();
    this.table.createTBody();
  }

  /** Returns a heading that sorts on click: ascending, descending, then the original order.
   * @param {string} head */
  #sorter(head) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head;
    button.addEventListener("click", () => {
      const last = this.#order;
      this.#order = last?.head !== head ? { head, descending: false } : last.descending ? null : { head, descending: true };
      this.#mark();
      this.#restart();
    });
    return button;
  }

  #mark() {
    for (const cell of this.table.tHead?.rows[0].cells ?? []) {
      const own = this.#order?.head === cell.textContent ? this.#order : null;
      cell.ariaSort = own && (own.descending ? "descending" : "ascending");
    }
  }

  /** Saves all rows that match the filter, in their order, drawn or not.
   * @param {"csv" | "json"} kind */
  async #save(kind) {
    await attempt(async () => {
      if (this.#rows.length < this.#total) await source.all();
      const write = kind === "csv" ? csvOf : jsonOf;
      const type = kind === "csv" ? "text/csv;charset=utf-8" : "application/json";
      const fields = this.#fields.filter((_, j) => !this.#columns[j].tick);
      save(`${source.name()}-${this.table.id}.${kind}`, type, write(fields, this.#found));
      const missing = this.#total - this.#rows.length;
      if (missing) throw new Error(`the file lacks ${missing} of ${this.#total} rows, which the service did not send; reload the page and save again`);
    });
  }
}

/** @param {Column<any>} column @returns {import("./filter.js").Field<any>} */
function fieldOf({ head, value, text }) {
  const read = value ?? text ?? (() => ""), show = text ?? value ?? (() => "");
  return { head, value: read, shown: (row) => shownAs(show(row)) };
}

const rowHead = () => Object.assign(document.createElement("th"), { scope: "row" });

/** @param {unknown} value */
const shownAs = (value) => (typeof value === "object" && value !== null ? JSON.stringify(value) : number(value));

/**
 * Returns the rows in an order: numbers by value, then texts by alphabet; empty cells are always last.
 *
 * @param {any[]} rows
 * @param {import("./filter.js").Field<any>[]} fields
 * @param {Order | null} order
 */
function sorted(rows, fields, order) {
  const field = fields.find(({ head }) => head === order?.head);
  if (!order || !field) return rows;
  const sign = order.descending ? -1 : 1;
  const keyed = rows.map((row) => {
    const own = numeric(field.value(row)), text = own === null ? field.shown(row) : "";
    return { row, own, text, rank: own !== null ? 0 : text ? sign : 2 };
  });
  keyed.sort((a, b) => a.rank - b.rank || (a.own !== null && b.own !== null ? sign * (a.own - b.own || 0)
    : sign * collator.compare(a.text, b.text)));
  return keyed.map(({ row }) => row);
}

// --- the line above a table -------------------------------------------------------------------------------------------

/** @typedef {{box: HTMLInputElement, tell: (found: number, loaded: number, total: number, hint: string, problem: string) => void}} Tools */

/**
 * Completes the element `[data-table=ID]` above a table: its filter and count, with `?`, what is wrong, and downloads.
 *
 * @param {HTMLTableElement} table
 * @param {(kind: "csv" | "json") => void} save
 * @param {() => void} filter
 * @returns {Tools | null}
 */
function toolsOf(table, save, filter) {
  const line = document.querySelector(`[data-table="${table.id}"]`), box = line?.querySelector("input[type=search]");
  if (!line || !(box instanceof HTMLInputElement)) return null;
  const count = line.appendChild(document.createElement("span"));
  count.id = box.id.replace("filter", "count");
  const help = document.createElement("dl"), problem = document.createElement("p");
  help.className = "grammar";
  help.id = `${box.id}-help`;
  help.hidden = true;
  for (const [example, meaning] of GRAMMAR) {
    const term = help.appendChild(document.createElement("dt"));
    term.appendChild(document.createElement("code")).textContent = example;
    help.appendChild(document.createElement("dd")).textContent = meaning;
  }
  problem.id = `${box.id}-problem`;
  problem.setAttribute("role", "status");
  box.setAttribute("aria-describedby", problem.id);
  box.addEventListener("input", filter);
  const ask = button("?", `how to filter ${table.id}`, () => {
    help.hidden = !help.hidden;
    ask.ariaExpanded = String(!help.hidden);
  });
  ask.ariaExpanded = "false";
  ask.setAttribute("aria-controls", help.id);
  box.after(ask);
  const title = "all rows that match the filter, in this order, with all digits";
  for (const kind of /** @type {const} */ (["csv", "json"])) {
    const saver = button(kind.toUpperCase(), `save ${table.id} as ${kind.toUpperCase()}: ${title}`, () => save(kind));
    saver.title = title;
    line.append(saver);
  }
  line.after(problem, help);
  return { box, tell: (found, loaded, total, hint, wrong) => {
    const isFiltered = Boolean(box.value.trim()) && !wrong;
    set(count, loaded < total && !isFiltered ? `first ${loaded} of ${total}` : `${found} of ${total}`);
    set(problem, wrong ? `${wrong}. All rows are shown.` : hint ? `${hint}.` : found || !isFiltered ? "" : "No row matches the filter.");
    problem.className = wrong ? "failed" : "notice";
    box.setAttribute("aria-invalid", String(Boolean(wrong)));
  } };
}

/** @param {string} text @param {string} label @param {() => void} act */
function button(text, label, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.ariaLabel = label;
  made.addEventListener("click", act);
  return made;
}
