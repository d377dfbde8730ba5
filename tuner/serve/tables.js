"use strict";
// The page's tables: their columns, headings and rows. Text from an experiment is set by textContent, never as HTML.
// Cells that have not changed are not replaced, so that selection and scroll position stay.

const MOST_ROWS = 500; // shown at once; the filter searches all rows
const ALL_ROWS = 10000; // the most that the service sends in one response

// --- words -----------------------------------------------------------------------------------------------------------

const number = (value) => (typeof value === "number" ? String(Number(value.toPrecision(5))) : value ?? "");
const moment = (s) => (s ? new Date(s * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }) : "");
const setting = (config, prefix = "") => Object.entries(config).map(([name, value]) =>
  value !== null && typeof value === "object" && !Array.isArray(value) ? setting(value, `${prefix}${name}/`)
    : `${prefix}${name} ${typeof value === "object" ? JSON.stringify(value) : number(value)}`).join(", ");

function duration(seconds) {
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} m`;
}

function state(summary) {
  const silent = Date.now() / 1000 - summary.updated;
  return summary.state === "running" && silent > 600 ? `running? silent for ${duration(silent)}` : summary.state;
}

// --- tables ----------------------------------------------------------------------------------------------------------

// A column: [head, row -> text, class of its cells or row -> class, row -> address where it is a link]
const EXPERIMENTS = [
  ["name", (e) => e.name, "link", (e) => `#${encodeURIComponent(e.name)}`],
  ["space", (e) => e.error || [e.space, e.searcher, e.scheduler].filter(Boolean).join(", ") || e.notice, "text"],
  ["state", (e) => (e.error ? "unreadable" : state(e)), (e) => (e.error ? "failed" : e.state)],
  ["done", (e) => e.counts.completed ?? "", "number"],
  ["pruned", (e) => e.counts.pruned ?? "", "number"],
  ["running", (e) => e.counts.running ?? "", "number"],
  ["failed", (e) => e.counts.failed ?? "", "number"],
  ["best", (e) => (e.best ? `${e.metric} ${number(e.best.value)}` : e.error ? "" : "none"), ""],
  ["started", (e) => moment(e.started), ""],
  ["took", (e) => (e.error ? "" : duration(e.took_s)), ""],
];
const RUNGS = [
  ["rung", (r) => r.rung, "number"], ["bracket", (r) => r.bracket, "number"], ["came", (r) => r.came, "number"],
  ["went on", (r) => r.went_on, "number"], ["stopped", (r) => r.stopped, "number"],
  ["waiting", (r) => r.waiting, "number"], ["best", (r) => number(r.best), "number"],
  ["cutoff then", (r) => number(r.cutoff_then), "number"], ["cutoff now", (r) => number(r.cutoff_now), "number"],
  ["would pass now", (r) => r.would_pass_now, "number"],
];
const DECISIONS = [
  ["trial", (d) => d.trial, "link", (d) => trialLink(d.trial)], ["action", (d) => d.action, (d) => d.action],
  ["epoch", (d) => d.epoch, "number"], ["rung", (d) => d.rung, "number"], ["bracket", (d) => d.bracket, "number"],
  ["value", (d) => number(d.value), "number"], ["cutoff", (d) => number(d.cutoff), "number"],
  ["margin", (d) => number(d.margin), "number"], ["arrived", (d) => (d.rung === null ? "" : d.recorded + 1), "number"],
  ["reason", (d) => d.reason, "text"],
];
const TRIALS = [
  ["trial", (t) => t.trial, "link", (t) => trialLink(t.trial)], ["status", (t) => t.status, (t) => t.status],
  ["best", (t) => number(t.best), "number"], ["at epoch", (t) => t.best_epoch, "number"],
  ["last", (t) => number(t.last), "number"], ["epochs", (t) => t.epochs, "number"],
  ["took", (t) => duration(t.seconds), "number"], ["setting", (t) => setting(t.config), "text"],
  ["reason", (t) => [t.reason, ...t.errors.filter((e) => !t.reason.includes(e))].filter(Boolean).join("; "), "text"],
];

function fill(table, columns, rows) {
  if (!table.tHead) {
    const head = table.createTHead().insertRow();
    for (const [name, , look] of columns) {
      const cell = head.appendChild(document.createElement("th"));
      cell.scope = "col";
      if (look === "number") cell.className = look;
      if (table.resort) cell.appendChild(sorter(table, name)); else cell.textContent = name;
    }
    table.createTBody();
  }
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, i) => {
    const line = body.rows[i] ?? body.insertRow();
    columns.forEach(([, text, look, address], j) => {
      const cell = line.cells[j] ?? line.insertCell();
      const target = look === "link" ? cell.firstChild ?? cell.appendChild(document.createElement("a")) : cell;
      set(target, text(row));
      if (look === "link") target.href = address(row);
      else cell.className = typeof look === "function" ? look(row) : look;
    });
  });
}

// A column heading that sorts on click: ascending, descending, then the original order.
function sorter(table, name) {
  const button = document.createElement("button");
  button.textContent = name;
  button.addEventListener("click", () => {
    const [last, down] = table.order ?? [];
    table.order = last !== name ? [name, false] : down ? null : [name, true];
    for (const head of table.tHead.rows[0].cells) {
      const own = table.order && head.textContent === name;
      head.ariaSort = own ? (table.order[1] ? "descending" : "ascending") : null;
    }
    table.resort();
  });
  return button;
}

function sorted(rows, columns, order) {
  if (!order) return rows;
  const of = columns.find(([name]) => name === order[0])[1];
  const key = (row) => { const text = of(row) ?? ""; return text === "" || Number.isNaN(Number(text)) ? text : Number(text); };
  const compare = (a, b) => (a === "") - (b === "") || (order[1] ? -1 : 1) * (typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
  return rows.map((row) => [key(row), row]).sort(([a], [b]) => compare(a, b)).map(([, row]) => row);
}

function set(node, text) {
  const wanted = String(text ?? "");
  if (node.textContent !== wanted) node.textContent = wanted;
}

// `rows` are the loaded rows; `total` is the number of all rows.
function filtered(table, columns, rows, total, box, count) {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  // The searched text includes the headings: "rung 4" matches the rows whose rung is 4.
  const text = (row) => columns.map(([name, of]) => `${name} ${of(row) ?? ""}`).join(" ").toLowerCase();
  const whole = words.join(" ");
  const fits = (row) => text(row).includes(whole) || words.every((word) => text(row).includes(word));
  const found = whole ? rows.filter(fits) : rows;
  table.resort ??= () => box.dispatchEvent(new Event("input"));
  fill(table, columns, sorted(found, columns, table.order).slice(0, MOST_ROWS));
  const cut = found.length > MOST_ROWS ? `, the first ${MOST_ROWS} shown` : "";
  set(count, rows.length < total && !whole ? `the first ${rows.length} of ${total}` : `${found.length} of ${total}${cut}`);
}
