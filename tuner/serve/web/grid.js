// @ts-check
// Tables: Tabulator draws, sorts and keeps the columns; this module gives it rows, the filter, downloads and keys.

import { TabulatorFull as Tabulator } from "./vendor/tabulator/tabulator.mjs";
import { attempt, button, el, escaped, set, shownAs } from "./dom.js";
import { csvOf, jsonOf, save } from "./download.js";
import { GRAMMAR, completions, filterOf, numeric } from "./filter.js";

/** A column. It has `value`, `text` or both; each is made from the other if it is missing. `look` is a CSS class, or a
 * function of the row that returns one; numbers are aligned to the right. A column with `link` shows links, and one with
 * `tick` shows checkboxes, which are not saved. A heading with `href` is a link, and does not sort. A column that is
 * `rare` is hidden until the user wants it, and one that is `spare` while all its cells are empty.
 * @template Row
 * @typedef {object} Column
 * @property {string} head unique in its table
 * @property {(row: Row) => unknown} [value] what the column is sorted, filtered and saved by
 * @property {(row: Row) => unknown} [text] what a cell shows
 * @property {string | ((row: Row) => string)} [look]
 * @property {(row: Row) => string} [link]
 * @property {{has: (row: Row) => boolean, set: (row: Row, is: boolean) => void, about: (row: Row) => string}} [tick]
 * @property {string} [href]
 * @property {string} [about] the heading's tooltip
 * @property {boolean} [rare]
 * @property {boolean} [spare] */

const MOST_PRINTED = 1000; // rows on paper
const PAPER_PX = 1000; // width, in the screen's letters, that fits the paper in those of print
const LONG = 200; // rows from which a table has a fixed height: to fit it to its rows takes as long as to draw them
const MOST_LOADED = 50_000; // rows that a table loads without being asked: a row takes about 1 kB
const MANY = 200; // with more changed rows, drawing the table anew is faster than changing each cell
const [KEY, ROW] = ["\nkey", "\nrow"]; // what a record has besides its columns, which may have any name
const KEYS = ["name", "head", "trial", "epoch", "rung", "bracket", "band", "action", "point", "parameter", "value"]; // what tells rows apart
const collator = new Intl.Collator(undefined, { numeric: true });

/** @type {Map<HTMLElement, Grid>} */
const grids = new Map();
/** Loads the rows that a table lacks: the page sets `all`, `name` to the start of the saved files' names, and `kind` to
 * what the user's columns are kept for. `isShown` says which rows a table has at all, and `drawn` is called with each
 * table whose rows were drawn. */
export const source = {
  all: async (/** @type {string} */ _table) => {}, name: () => "", kind: () => "",
  /** @type {(row: any, node: HTMLElement) => boolean} */ isShown: () => true,
  /** @type {(node: HTMLElement) => void} */ drawn: () => {},
};

/** Shows rows in a table, in the order and with the filter that the user chose. A table in a closed tab is not drawn.
 * @template Row @param {HTMLElement} node @param {Column<Row>[]} columns @param {Row[]} rows the loaded rows
 * @param {number} total the number of all rows */
export function fill(node, columns, rows, total = rows.length) {
  if (!node.offsetParent) return;
  let grid = grids.get(node);
  if (!grid) grids.set(node, grid = new Grid(node));
  grid.show(/** @type {Column<any>[]} */ (columns), rows, total);
}

/** Filters all tables again: `source.isShown` has changed. */
export const refreshTables = () => grids.forEach((grid) => grid.filter());

/** Groups the rows of a table by a column; an empty name undoes it.
 * @param {HTMLElement} node @param {string} head */
export const group = (node, head) => grids.get(node)?.group(head);

/** Forgets orders, filters and rows: the tables will show another experiment. The list keeps its own. */
export function resetTables() {
  grids.forEach((grid, node) => node.id !== "experiments" && grid.reset());
}

class Grid {
  /** @type {Column<any>[]} */ #columns = [];
  /** @type {import("./filter.js").Field<any>[]} */ #fields = [];
  /** @type {any[]} The loaded rows. */ #rows = [];
  /** @type {Map<string, any>} What Tabulator has of each row: its key, the row, and for each column what it is sorted by. */
  #records = new Map();
  /** @type {any} */ #table = null;
  #isBuilt = false;
  #total = 0;
  /** @type {(row: any) => boolean} */ #test = () => true;
  #isFiltered = false; // whether Tabulator has a filter
  #drawnColumns = "";
  #groupedBy = "";
  #firstRows = () => this.#table.getRows("active").slice(0, MOST_PRINTED);
  /** @type {Map<string, boolean>} Whether the user wants to see a column. */ #wanted = new Map();
  /** @type {Set<string>} Columns whose width the user chose. */ #resized = new Set();
  /** @type {HTMLElement | null} */ #focused = null;

  /** @param {HTMLElement} node */
  constructor(node) {
    this.node = node;
    this.tools = toolsOf(node, { save: (kind) => this.#save(kind), filter: () => this.filter(), columns: () => this.#columnChoices(),
      complete: (text) => completions(text, this.#fields, this.#rows) });
  }

  /** @param {Column<any>[]} columns @param {any[]} rows @param {number} total */
  show(columns, rows, total) {
    this.#columns = columns;
    this.#fields = columns.map(fieldOf);
    this.#rows = rows;
    this.#total = total;
    if (this.#table) this.#update();
    else this.#build();
    if (rows.length < total && total <= MOST_LOADED) attempt(() => source.all(this.node.id));
  }

  reset() {
    this.#destroy();
    this.#rows = [];
    this.tools.box.value = "";
  }

  #destroy() {
    window.removeEventListener("beforeprint", this.#onPrint);
    this.#table?.destroy();
    this.node.replaceChildren();
    this.#table = null;
    this.#isBuilt = false;
    this.#records = new Map();
  }

  /** Applies the filter that the user typed. */
  filter() {
    if (!this.#isBuilt) return;
    let { test, told, isWrong } = this.#typed();
    const isNeeded = this.tools.box.value.trim() !== "" || this.#rows.some((row) => !source.isShown(row, this.node));
    this.#test = test;
    const passes = (/** @type {any} */ record) => source.isShown(record[ROW], this.node) && this.#test(record[ROW]);
    try {
      if (isNeeded) this.#table.setFilter(passes);
      else if (this.#isFiltered) this.#table.clearFilter();
    } catch (error) { // a regular expression takes too long
      [this.#test, told, isWrong] = [() => true, problem(error), true];
      this.#table.setFilter(passes);
    }
    this.#isFiltered = isNeeded;
    if (this.#rows.length < this.#total && this.tools.box.value.trim()) attempt(() => source.all(this.node.id));
    const found = isNeeded ? this.#table.getDataCount("active") : this.#rows.length, isPart = this.#rows.length < this.#total;
    this.tools.tell(isPart ? `${found} of the first ${this.#rows.length} of ${this.#total}` : `${found} of ${this.#total}`, told, isWrong);
  }

  /** @param {string} head */
  group(head) {
    this.#groupedBy = head;
    if (!this.#isBuilt) return;
    this.#table.setGroupBy(head || false);
    this.#table.options.printRowRange = head ? "active" : this.#firstRows; // a function cannot return groups
  }

  /** @returns {{test: (row: any) => boolean, told: string, isWrong: boolean}} */
  #typed() {
    const text = this.tools.box.value;
    if (!text.trim()) return { test: () => true, told: "", isWrong: false };
    try {
      const { test, told } = filterOf(text, this.#fields);
      return { test, told, isWrong: false };
    } catch (error) {
      return { test: () => true, told: problem(error), isWrong: true };
    }
  }

  #build() {
    this.#wanted = new Map(stored(this.#key) ?? []);
    this.#records = this.#recorded();
    this.#drawnColumns = this.#heads();
    const table = this.#table = new Tabulator(this.node, {
      data: [...this.#records.values()], index: KEY, columns: this.#definitions(), nestedFieldSeparator: false,
      layout: "fitDataFill", [this.#isLong ? "height" : "maxHeight"]: "70vh", movableColumns: true, sortOrderReverse: true,
      persistence: { columns: ["width"] }, persistenceID: `${this.node.id} ${source.kind()}`,
      // Only widths that the user chose are kept: others follow the cells.
      persistenceWriterFunc: (/** @type {string} */ id, /** @type {string} */ type, /** @type {any[]} */ columns) => stored(`${id}-${type}`,
        columns.map(({ width, ...column }) => (this.#resized.has(column.field) ? { ...column, width } : column))),
      persistenceReaderFunc: (/** @type {string} */ id, /** @type {string} */ type) => {
        const columns = stored(`${id}-${type}`) ?? [];
        this.#resized = new Set(columns.flatMap((/** @type {any} */ { field, width }) => (width ? [field] : [])));
        return columns.length ? columns : false;
      },
      printAsHtml: true, printStyled: false, printRowRange: this.#firstRows,
      groupToggleElement: "header", groupHeaderPrint: (/** @type {unknown} */ value, /** @type {number} */ count) => escaped(`${value} (${count})`), groupHeader: (/** @type {unknown} */ value, /** @type {number} */ count, /** @type {unknown} */ _, /** @type {any} */ group) => {
        group.getElement().role = "row"; // Tabulator's rowgroup may not be in another one
        return el("b", { role: "gridcell" }, el("button", { type: "button", ariaExpanded: String(group.isVisible()), onclick: () => this.#keepFocus() }, `${value} (${count})`));
      },
      rowFormatter: (/** @type {any} */ line) => { line.getElement().dataset.trial = line.getData()[ROW].trial ?? ""; }, 
    });
    table.on("columnResized", (/** @type {any} */ column) => {
      this.#resized.add(column.getField());
      table.module("persistence").save("columns");
    });
    table.on("tableBuilt", () => {
      window.addEventListener("beforeprint", this.#onPrint); // after Tabulator's own listener
      this.#isBuilt = true;
      // The rows take the keyboard's focus, and role=grid allows no other element with a tabindex between it and them.
      this.node.querySelector(".tabulator-tableholder")?.removeAttribute("tabindex");
      if (this.#groupedBy) this.group(this.#groupedBy);
      this.#update();
    });
    table.on("renderStarted", () => this.#keepFocus());
    for (const event of ["renderComplete", "scrollVertical"]) table.on(event, () => { source.drawn(this.node); this.#giveFocus(); });
  }

  /** Says how many rows are printed, and makes a wide table as small as the paper needs. Tabulator has put the table for
   * paper in the place of its own. */
  #onPrint = () => {
    set(this.tools.printed, this.#printed());
    const table = /** @type {HTMLElement | null} */ (this.node.parentElement?.querySelector(".tabulator-print-table table"));
    if (table) table.style.setProperty("zoom", String(Math.min(1, PAPER_PX / table.scrollWidth)));
  };

  /** Remembers what has the focus in the table: drawing its rows, groups or columns takes it away. */
  #keepFocus() {
    const now = document.activeElement;
    if (now instanceof HTMLElement && this.node.contains(now)) this.#focused = now;
  }

  /** Gives the focus back; to a button of the same name or the row that the tab key reaches, if what had it is gone. */
  #giveFocus() {
    const lost = this.#focused, same = () => [...this.node.querySelectorAll("button")].find((each) => each.textContent === lost?.textContent);
    const next = lost?.isConnected ? lost : lost && (same() ?? /** @type {HTMLElement | null} */ (this.node.querySelector(".tabulator-row[tabindex='0']")));
    if (next !== document.activeElement) next?.focus({ preventScroll: true });
    this.#focused = null;
  }

  /** Gives Tabulator what has changed: single cells if few rows have. */
  #update() {
    if (!this.#isBuilt) return;
    if (this.#isLong && !this.#table.options.height) {
      this.#destroy();
      return this.#build();
    }
    this.#keepFocus();
    const isOther = this.#drawnColumns !== this.#heads();
    if (isOther) {
      this.#drawnColumns = this.#heads();
      this.#records = new Map(); // their records lack the new columns
      this.#table.setColumns(this.#table.module("persistence").load("columns", this.#definitions()));
    }
    const before = this.#records, now = this.#records = this.#recorded(), places = [...before.keys()];
    const isLonger = places.length <= now.size && [...now.keys()].slice(0, places.length).every((key, i) => key === places[i]);
    const changed = [...now.values()].filter((record) => before.get(record[KEY]) !== record);
    if (isOther || !isLonger || changed.length > MANY) this.#table.replaceData([...now.values()]);
    else {
      const [known, added] = [true, false].map((is) => changed.filter((record) => before.has(record[KEY]) === is));
      if (known.length) this.#table.updateData(known);
      if (added.length) this.#table.addData(added);
      const sorters = this.#table.getSorters();
      if (changed.length && sorters.length) this.#table.setSort(sorters.map((/** @type {any} */ { field, dir }) => ({ column: field, dir })));
    }
    for (const [i, { head, spare }] of this.#columns.entries()) {
      const column = spare && !this.#wanted.has(head) && this.#table.getColumn(head);
      if (!column || column.isVisible() || this.#rows.every((row) => !this.#fields[i].shown(row))) continue;
      column.show();
      column.setWidth(true); // it was laid out while it was hidden
    }
    this.filter();
    source.drawn(this.node);
    this.#giveFocus();
  }

  /** What the user's columns are kept for: the tables of experiments of one space have the same. */
  get #key() {
    return `tuner-columns ${this.node.id} ${source.kind()}`;
  }

  get #isLong() {
    return this.#rows.length > LONG;
  }

  #heads() {
    return this.#columns.map(({ head }) => head).join("\n");
  }

  /** Returns a record for each row; rows that have not changed keep theirs. */
  #recorded() {
    const records = new Map();
    for (const row of this.#rows) {
      let key = JSON.stringify(KEYS.map((field) => row[field]));
      while (records.has(key)) key += "'";
      const known = this.#records.get(key);
      records.set(key, known?.[ROW] === row ? known : Object.fromEntries([[KEY, key], [ROW, row],
        ...this.#fields.map(({ head, value, shown }) => [head, numeric(value(row)) ?? shown(row)])]));
    }
    return records;
  }

  #definitions() {
    return this.#columns.map((column, i) => {
      const { head, look, about, href, tick, rare, spare } = column, field = this.#fields[i];
      const heading = () => (href ? el("a", { href }, head) : tick ? el("span", {}, head) : el("button", { type: "button", title: about ?? "",
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.#moveColumn(event, head) }, head));
      return {
        title: escaped(head), field: head, titleFormatter: heading, sorter: order, headerSort: !href && !tick, headerSortTristate: true,
        formatter: (/** @type {any} */ cell) => content(column, field, cell), frozen: i === 0 && !tick, hozAlign: look === "number" ? "right" : "left",
        headerHozAlign: look === "number" ? "right" : "left", maxInitialWidth: look === "text" ? 520 : 260, minWidth: 44,
        visible: this.#wanted.get(head) ?? (!rare && !(spare && this.#rows.every((row) => !field.shown(row)))),
      };
    });
  }

  /** Moves a column with Alt and an arrow.
   * @param {KeyboardEvent} event @param {string} head */
  #moveColumn(event, head) {
    const isRight = event.key === "ArrowRight", column = this.#table.getColumn(head);
    if (!event.altKey || !(isRight || event.key === "ArrowLeft")) return;
    event.preventDefault(); // else the browser goes back
    let next = column;
    do next = isRight ? next.getNextColumn() : next.getPrevColumn(); while (next && !next.isVisible());
    if (!next) return;
    column.move(next, isRight);
    /** @type {HTMLElement | null} */ (column.getElement().querySelector("button"))?.focus();
  }

  /** Returns a checkbox for each column, which shows or hides it. */
  #columnChoices() {
    return this.#isBuilt ? this.#table.getColumns().map((/** @type {any} */ column) => {
      const onchange = () => {
        column.toggle();
        if (column.isVisible()) column.setWidth(true); // it was laid out while it was hidden
        this.#wanted.set(column.getField(), column.isVisible());
        stored(this.#key, [...this.#wanted]);
        source.drawn(this.node);
      };
      return el("label", {}, el("input", { type: "checkbox", checked: column.isVisible(), onchange }), ` ${column.getField()}`);
    }) : [];
  }

  #printed() {
    const found = this.#table.getDataCount("active"), printed = Math.min(found, MOST_PRINTED);
    const missing = this.#rows.length < this.#total ? ` The page has loaded ${this.#rows.length} of ${this.#total}.` : "";
    return printed < found || missing ? `${printed} of ${found} rows are printed.${missing}` : "";
  }

  /** Saves all rows that match the filter, in their order, drawn or not.
   * @param {"csv" | "json"} kind */
  async #save(kind) {
    await attempt(async () => {
      if (this.#rows.length < this.#total) await source.all(this.node.id);
      const write = kind === "csv" ? csvOf : jsonOf;
      const fields = this.#fields.filter((_, j) => !this.#columns[j].tick);
      const rows = this.#table.getData("active").map((/** @type {any} */ record) => record[ROW]);
      save(`${source.name()}-${this.node.id}`, kind, write(fields, rows));
      const missing = this.#total - this.#rows.length;
      if (missing) throw new Error(`the file lacks ${missing} of ${this.#total} rows, which the service did not send; reload the page and save again`);
    });
  }
}

/** Returns what the browser has stored under a name, after storing a value if one is given; null if it blocks storage.
 * @param {string} name @param {unknown} [value] */
function stored(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, JSON.stringify(value));
    return JSON.parse(localStorage.getItem(name) ?? "null");
  } catch {
    return null;
  }
}

/** @param {unknown} error */
const problem = (error) => `${error instanceof Error ? error.message : error}. All rows are shown.`;

/** @param {Column<any>} column @returns {import("./filter.js").Field<any>} */
function fieldOf({ head, value, text }) {
  const read = value ?? text ?? (() => ""), show = text ?? value ?? (() => "");
  return { head, value: read, shown: (row) => shownAs(show(row)) };
}

/** Returns what a cell shows, never as a text, which Tabulator would read as HTML.
 * @param {Column<any>} column @param {import("./filter.js").Field<any>} field @param {any} cell */
function content({ look, link, tick }, field, cell) {
  const row = cell.getData()[ROW], text = field.shown(row), node = cell.getElement();
  if (tick) {
    const box = el("input", { type: "checkbox", checked: tick.has(row), ariaLabel: tick.about(row), onchange: () => tick.set(row, box.checked) });
    return box;
  }
  const own = (typeof look === "function" ? look(row) : look) ?? "";
  if (node.dataset) {
    if (node.dataset.look) node.classList.remove(...node.dataset.look.split(" "));
    node.dataset.look = own;
    if (own) node.classList.add(...own.split(" "));
    if (node.title !== text) node.title = text; // the cell may be too narrow for it
  }
  return link ? el("a", { href: link(row) }, text) : document.createTextNode(text);
}

/** Compares two cells: numbers by value, then texts by alphabet. Empty cells are last in both directions.
 * @param {unknown} a @param {unknown} b @param {unknown} _a @param {unknown} _b @param {unknown} _column @param {string} direction */
function order(a, b, _a, _b, _column, direction) {
  const isEmpty = [a, b].map((each) => each === "" || each === null || each === undefined);
  if (isEmpty[0] || isEmpty[1]) return (Number(isEmpty[0]) - Number(isEmpty[1])) * (direction === "desc" ? -1 : 1);
  if (typeof a === "number" && typeof b === "number") return a - b || 0;
  return typeof a === typeof b ? collator.compare(String(a), String(b)) : typeof a === "number" ? -1 : 1;
}

// --- the line above a table -------------------------------------------------------------------------------------------

/** @typedef {{box: HTMLInputElement, printed: Node, tell: (count: string, told: string, isWrong: boolean) => void}} Tools */

/** Adds the line above a table: its filter and count, help, the choice of columns, and downloads.
 * @param {HTMLElement} node
 * @param {{save: (kind: "csv" | "json") => void, filter: () => void, columns: () => Node[], complete: (text: string) => string[]}} act
 * @returns {Tools} */
function toolsOf(node, act) {
  const name = node.ariaLabel?.toLowerCase() ?? "", id = node.id;
  const names = el("datalist", { id: `${id}-names` }), count = el("span", { id: `${id}-count` });
  const told = el("p", { id: `${id}-told` }), help = el("dl", { id: `${id}-help`, className: "grammar", hidden: true });
  const complete = () => names.replaceChildren(...act.complete(box.value).map((value) => el("option", { value })));
  const box = el("input", { type: "search", id: `${id}-filter`, placeholder: `filter, e.g. ${node.dataset.example}`,
    ariaLabel: `Filter ${name}`, oninput: () => { act.filter(); complete(); }, onfocus: complete });
  box.setAttribute("list", names.id);
  box.setAttribute("aria-describedby", told.id);
  told.setAttribute("role", "status");
  const ask = button("?", () => {
    help.hidden = !help.hidden;
    ask.ariaExpanded = String(!help.hidden);
  }, `how to filter ${name}`);
  ask.ariaExpanded = "false";
  ask.setAttribute("aria-controls", help.id);
  help.append(...GRAMMAR.flatMap(([example, meaning]) => [el("dt", {}, el("code", {}, example)), el("dd", {}, meaning)]));
  const list = el("span", { className: "controls" });
  const columns = el("details", { ontoggle: () => list.replaceChildren(...act.columns()) }, el("summary", {}, "columns"), list);
  const title = "all rows that match the filter, in this order, with all digits";
  const savers = /** @type {const} */ (["csv", "json"]).map((kind) =>
    Object.assign(button(kind.toUpperCase(), () => act.save(kind), `save ${name} as ${kind.toUpperCase()}: ${title}`), { title }));
  const printed = el("p", { className: "printed" });
  node.before(el("div", { className: "controls tools" }, box, names, ask, count, columns, ...savers), told, help, printed);
  return { box, printed, tell: (text, sentence, isWrong) => {
    set(count, text);
    set(told, sentence);
    told.className = isWrong ? "failed" : "about";
    box.setAttribute("aria-invalid", String(isWrong));
  } };
}
