"use strict";
// One page, two views: the list of experiments (#) and one experiment (#name). Whatever comes from an experiment is
// written through textContent, never as HTML; what has not changed is not touched, so that selection and scroll stay.

const at = (id) => document.getElementById(id);
const MOST_ROWS = 500; // drawn at a time; the filter searches all
let open = null; // the experiment shown: {name, stream, summary, trials, rungs, figures}

// --- words -----------------------------------------------------------------------------------------------------------

const number = (value) => (typeof value === "number" ? String(Number(value.toPrecision(5))) : value ?? "");
const moment = (s) => (s ? new Date(s * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }) : "");
const setting = (config, prefix = "") => Object.entries(config).map(([name, value]) =>
  value !== null && typeof value === "object" && !Array.isArray(value) ? setting(value, `${prefix}${name}/`)
    : `${prefix}${name} ${typeof value === "object" ? JSON.stringify(value) : number(value)}`).join(", ");

function duration(seconds) {
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  return s < 3600 ? `${Math.floor(s / 60)} m ${s % 60} s` : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} m`;
}

function state(summary) {
  const silent = Date.now() / 1000 - summary.updated;
  return summary.state === "running" && silent > 600 ? `running? silent for ${duration(silent)}` : summary.state;
}

// --- tables ----------------------------------------------------------------------------------------------------------

// A column: [head, row -> text, class of its cells or row -> class]
const EXPERIMENTS = [
  ["name", (e) => e.name, "link"],
  ["state", (e) => (e.error ? "unreadable" : state(e)), (e) => (e.error ? "failed" : e.state)],
  ["done", (e) => e.counts.completed ?? "", "number"],
  ["pruned", (e) => e.counts.pruned ?? "", "number"],
  ["running", (e) => e.counts.running ?? "", "number"],
  ["failed", (e) => e.counts.failed ?? "", "number"],
  ["best", (e) => (e.best ? `${e.metric} ${number(e.best.value)}` : e.error ? "" : "none"), ""],
  ["started", (e) => moment(e.started), ""],
  ["took", (e) => (e.error ? "" : duration(e.took_s)), ""],
  ["space", (e) => e.error || `${e.space}, ${e.searcher}, ${e.scheduler}`, "text"],
];
const RUNGS = [
  ["rung", (r) => r.rung, "number"], ["bracket", (r) => r.bracket, "number"], ["came", (r) => r.came, "number"],
  ["went on", (r) => r.went_on, "number"], ["stopped", (r) => r.stopped, "number"],
  ["paused", (r) => r.paused, "number"], ["best", (r) => number(r.best), "number"],
  ["cutoff then", (r) => number(r.cutoff_then), "number"], ["cutoff now", (r) => number(r.cutoff_now), "number"],
  ["would pass now", (r) => r.would_pass_now, "number"],
];
const DECISIONS = [
  ["trial", (d) => d.trial, ""], ["action", (d) => d.action, (d) => d.action],
  ["epoch", (d) => d.epoch, "number"], ["rung", (d) => d.rung, "number"], ["bracket", (d) => d.bracket, "number"],
  ["value", (d) => number(d.value), "number"], ["cutoff", (d) => number(d.cutoff), "number"],
  ["margin", (d) => number(d.margin), "number"], ["arrived", (d) => (d.rung === null ? "" : d.recorded + 1), "number"],
  ["reason", (d) => d.reason, "text"],
];
const TRIALS = [
  ["trial", (t) => t.trial, ""], ["status", (t) => t.status, (t) => t.status],
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
      cell.textContent = name;
      cell.scope = "col";
      if (look === "number") cell.className = look;
    }
    table.createTBody();
  }
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, i) => {
    const line = body.rows[i] ?? body.insertRow();
    columns.forEach(([, text, look], j) => {
      const cell = line.cells[j] ?? line.insertCell();
      const target = look === "link" ? cell.firstChild ?? cell.appendChild(document.createElement("a")) : cell;
      set(target, text(row));
      if (look === "link") target.href = `#${encodeURIComponent(row.name)}`;
      else cell.className = typeof look === "function" ? look(row) : look;
    });
  });
}

function set(node, text) {
  const wanted = String(text ?? "");
  if (node.textContent !== wanted) node.textContent = wanted;
}

function filtered(table, columns, rows, box, count) {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  // Heads are part of what is searched: "rung 4" finds the rows whose rung is 4.
  const text = (row) => columns.map(([name, of]) => `${name} ${of(row) ?? ""}`).join(" ").toLowerCase();
  const phrase = words.join(" ");
  const found = phrase ? rows.filter((row) => text(row).includes(phrase) || words.every((w) => text(row).includes(w))) : rows;
  fill(table, columns, found.slice(0, MOST_ROWS));
  const cut = found.length > MOST_ROWS ? `, the first ${MOST_ROWS} shown` : "";
  set(count, `${found.length} of ${rows.length}${cut}`);
}

// --- the list --------------------------------------------------------------------------------------------------------

async function get(path) {
  const answer = await fetch(path);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error);
  return body;
}

async function showList() {
  const { results, experiments } = await get("/api/experiments");
  if (open) return; // another page was opened meanwhile
  set(at("where"), results);
  fill(at("experiments"), EXPERIMENTS, experiments);
  at("experiments").parentElement.hidden = !experiments.length;
  at("no-experiments").hidden = experiments.length > 0;
  set(at("no-experiments"), `No experiment here yet. Start one with\npython -m tuner.run --space cifar --results ${results}`);
}

// --- one experiment --------------------------------------------------------------------------------------------------

async function load(shown) {
  const path = `/api/experiments/${encodeURIComponent(shown.name)}`;
  // The summary first: its number of lines is what the stream goes on after.
  const summary = await get(path);
  const [trials, rungs, figures] = await Promise.all(["trials", "rungs", "figures"].map((part) => get(`${path}/${part}`)));
  Object.assign(shown, { summary, trials, rungs, figures });
  if (open === shown) draw();
}

function follow(shown) {
  const after = shown.summary.lines;
  shown.stream = new EventSource(`/api/experiments/${encodeURIComponent(shown.name)}/events?after=${after}`);
  shown.stream.onopen = () => set(at("live"), "live");
  shown.stream.onmessage = () => {
    shown.timer ??= setTimeout(async () => { // many events a second are one update
      await attempt(() => load(shown));
      shown.timer = null;
    }, 800);
  };
  shown.stream.onerror = () => {
    set(at("live"), "reconnecting");
    if (shown.stream.readyState === EventSource.CLOSED) shown.again = setTimeout(() => follow(shown), 5000);
  };
}

function draw() {
  const { summary, trials, rungs, figures } = open;
  const trained = trials.trials.reduce((sum, trial) => sum + trial.epochs, 0);
  const said = Object.entries(summary.counts).filter(([, n]) => n).map(([status, n]) => `${n} ${status}`);
  set(at("name"), summary.name);
  set(at("summary"), [summary.space, `${summary.searcher} + ${summary.scheduler}`, state(summary),
    `${trials.total} of ${summary.num_samples} trials: ${said.join(", ") || "none yet"}`,
    `${trained} epochs trained of ${summary.num_samples * summary.max_epochs}`,
    `started ${moment(summary.started)}`, `took ${duration(summary.took_s)}`].join(" · "));
  const { best, metric } = summary;
  set(at("best"), best ? `Best ${metric} ${number(best.value)}: trial ${best.trial}, epoch ${best.epoch}: ${setting(best.config)}` : "");
  set(at("notice"), summary.notice);
  at("notice").hidden = !summary.notice;
  set(at("nothing"), best ? "" : nothing(summary, trials.trials));
  at("nothing").hidden = Boolean(best);
  set(at("resume"), summary.resume);
  set(at("retrain"), summary.retrain);
  at("retrain-line").hidden = !summary.retrain;
  at("rungs-section").hidden = !rungs.rungs.length;
  at("decisions-section").hidden = !rungs.decisions.length;
  fill(at("rungs"), RUNGS, rungs.rungs);
  drawTables();
  for (const name of ["curves", "history", "parallel"]) {
    at(`${name}-section`).hidden = !figures[name];
    if (figures[name]) drawFigure(name, figures[name]);
  }
}

function nothing(summary, trials) {
  const reports = trials.filter((trial) => trial.epochs).length;
  const error = trials.find((trial) => trial.errors.length || trial.status === "failed");
  if (error) return `No finite ${summary.metric}. Trial ${error.trial}: ${error.errors.at(-1) ?? error.reason}`;
  if (reports) return `No finite ${summary.metric} in what ${reports} trials reported: the training diverges.`;
  return summary.state === "running" ? "No report yet." : "The search ended without a report.";
}

function drawTables() {
  filtered(at("decisions"), DECISIONS, open.rungs.decisions, at("decision-filter"), at("decision-count"));
  filtered(at("trials"), TRIALS, open.trials.trials, at("trial-filter"), at("trial-count"));
}

function drawFigure(name, figure) {
  const style = getComputedStyle(document.documentElement);
  const [text, line, muted] = ["--text", "--line", "--muted"].map((name) => style.getPropertyValue(name));
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: muted, automargin: true };
  const logs = { xaxis: at("log-epoch").checked, yaxis: at("log-metric").checked };
  const layout = { margin: { l: 60, r: 16, t: 40, b: 44 }, ...figure.layout, uirevision: open.name,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: text, family: "system-ui, sans-serif" } };
  for (const side of ["xaxis", "yaxis"]) {
    if (!figure.layout[side]) continue;
    layout[side] = { ...axis, ...figure.layout[side] };
    if (name !== "curves" || !logs[side]) continue;
    // A zoom made on one scale means nothing on the other.
    Object.assign(layout[side], { type: "log", uirevision: "log", rangemode: "normal" });
  }
  if (name === "curves" && logs.xaxis) {
    layout.annotations = layout.annotations.map((a) => ({ ...a, x: Math.log10(a.x) })); // Plotly's way with annotations
  }
  const hidden = !at("show-pruned").checked;
  const flat = !webgl();
  const data = figure.data.map((trace) => ({ ...trace, visible: !(hidden && trace.meta === "pruned"),
    type: flat && trace.type === "scattergl" ? "scatter" : trace.type }));
  Plotly.react(at(name), data, layout, { responsive: true, displaylogo: false });
}

function webgl() {
  webgl.known ??= Boolean(document.createElement("canvas").getContext("webgl"));
  return webgl.known;
}

// --- which view ------------------------------------------------------------------------------------------------------

async function attempt(work) {
  try {
    await work();
    at("problem").hidden = true;
  } catch (error) {
    set(at("problem"), error.message);
    at("problem").hidden = false;
  }
}

async function route() {
  open?.stream?.close();
  clearTimeout(open?.timer);
  clearTimeout(open?.again);
  const name = decodeURIComponent(location.hash.slice(1));
  const shown = open = name ? { name } : null;
  document.title = name ? `${name}: tuner` : "tuner";
  set(at("live"), "");
  at("list").hidden = Boolean(name);
  if (!name) {
    at("one").hidden = true;
    return attempt(showList);
  }
  set(at("where"), name);
  at("one").hidden = false;
  await attempt(async () => {
    await load(shown);
    if (open === shown) follow(shown);
  });
  at("one").hidden = open === shown && !shown.summary;
}

const redraw = () => open?.figures && draw();
for (const id of ["show-pruned", "log-metric", "log-epoch"]) at(id).addEventListener("change", redraw);
for (const id of ["decision-filter", "trial-filter"]) at(id).addEventListener("input", () => open?.rungs && drawTables());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
window.addEventListener("hashchange", route);
setInterval(() => open || document.hidden || attempt(showList), 3000);
route();
