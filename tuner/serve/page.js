"use strict";
// One page, two views: the list of experiments (#) and one experiment (#name), kept up to date by its journal.

const at = (id) => document.getElementById(id);
// The experiment on display: {name, stream, summary, trials, rungs, figures, limit}. At most `limit` rows are loaded.
let open = null;

// --- the list --------------------------------------------------------------------------------------------------------

// Retries a request when the service asks for that, because it reads a long journal in parts, one for each request.
async function get(path, headers = {}) {
  const answer = await fetch(path, { headers });
  const again = answer.status === 503 && Number(answer.headers.get("Retry-After"));
  if (again) {
    await new Promise((resolve) => setTimeout(resolve, 1000 * again));
    return get(path, headers);
  }
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error);
  return body;
}

async function showList() {
  const { results, experiments } = await get("/api/experiments");
  if (open) return; // the user opened an experiment meanwhile
  set(at("where"), results);
  fill(at("experiments"), EXPERIMENTS, experiments);
  at("experiments").parentElement.hidden = !experiments.length;
  at("no-experiments").hidden = experiments.length > 0;
  const command = `python -m tuner.run --space cifar --results ${results}`;
  set(at("no-experiments"), `No experiment here yet. Start one with\n${command}`);
}

// --- one experiment --------------------------------------------------------------------------------------------------

async function load(shown) {
  const path = `/api/experiments/${encodeURIComponent(shown.name)}`;
  const began = performance.now();
  // The summary is loaded first, because the event stream starts after its number of lines.
  const summary = await get(path);
  const limit = shown.whole ? ALL_ROWS : MOST_ROWS;
  // Loaded rows that have not changed since are not requested again.
  const since = shown.limit === limit && shown.summary.lines <= summary.lines ? shown.summary.lines : 0;
  const rows = since ? `?since=${since}` : `?limit=${limit}`;
  const parts = [`trials${rows}`, `rungs${rows}`, "figures"].map((part) => get(`${path}/${part}`));
  const [trials, rungs, figures] = await Promise.all(parts);
  const isCut = trials.left_out || rungs.left_out;
  if (since && (isCut || Math.max(trials.trials.length, rungs.decisions.length) >= ALL_ROWS)) {
    shown.limit = 0; // more changed rows than one response has: load all again
    return load(shown);
  }
  if (since) {
    trials.trials = merged(shown.trials.trials, trials.trials, limit);
    rungs.decisions = withNews(shown.rungs.decisions, rungs.decisions, limit);
  }
  Object.assign(shown, { summary, trials, rungs, figures, limit, took: performance.now() - began });
  if (open === shown) draw();
}

// Returns the first rows in the order of the trials; changed rows replace their earlier versions.
function merged(rows, news, limit) {
  const known = new Map(rows.map((row) => [row.trial, row]));
  for (const row of news) if (known.has(row.trial) || known.size < limit) known.set(row.trial, row);
  return [...known.values()];
}

// Returns the decisions with the smallest margins; those of changed trials replace the earlier ones of these trials.
// A journal only adds decisions.
function withNews(decisions, news, limit) {
  const renewed = new Set(news.map((decision) => decision.trial));
  const all = [...decisions.filter((decision) => !renewed.has(decision.trial)), ...news];
  return all.sort((a, b) => (a.margin ?? Infinity) - (b.margin ?? Infinity) || 0).slice(0, limit);
}

function follow(shown) {
  const after = shown.summary.lines;
  shown.stream = new EventSource(`/api/experiments/${encodeURIComponent(shown.name)}/events?after=${after}`);
  shown.stream.onopen = () => set(at("live"), "live");
  shown.stream.onmessage = () => {
    shown.timer ??= setTimeout(async () => { // many events within a second cause one update
      await attempt(() => load(shown));
      shown.timer = null;
    }, Math.min(5000, Math.max(800, 20 * shown.took))); // 1/20 of the time, to spare the search
  };
  shown.stream.onerror = () => {
    set(at("live"), "reconnecting");
    if (shown.stream.readyState === EventSource.CLOSED) shown.again = setTimeout(() => follow(shown), 5000);
  };
}

function draw() {
  const { summary, trials, rungs, figures } = open;
  const said = Object.entries(summary.counts).filter(([, n]) => n).map(([status, n]) => `${n} ${status}`);
  set(at("name"), summary.name);
  const rules = [...new Set([summary.searcher, summary.scheduler])].join(" + "); // a plain Ray folder: "not recorded"
  set(at("summary"), [summary.space, rules, state(summary),
    `${trials.total} of ${summary.num_samples} trials: ${said.join(", ") || "none yet"}`,
    `${summary.epochs} of ${summary.num_samples * summary.max_epochs} epochs trained`,
    summary.started && `started ${moment(summary.started)}`, summary.started && `took ${duration(summary.took_s)}`]
    .filter(Boolean).join(" · "));
  const { best, metric } = summary;
  const place = best && `trial ${best.trial}, epoch ${best.epoch}: ${setting(best.config)}`;
  set(at("best"), best ? `Best ${metric} ${number(best.value)}: ${place}` : "");
  showControl(summary);
  set(at("notice"), summary.notice);
  at("notice").hidden = !summary.notice;
  set(at("nothing"), best ? "" : nothing(summary, trials.trials));
  at("nothing").hidden = Boolean(best);
  set(at("resume"), summary.resume);
  at("resume").closest("section").hidden = !summary.resume;
  set(at("retrain"), summary.retrain);
  at("retrain-line").hidden = !summary.retrain;
  at("rungs-section").hidden = !rungs.rungs.length;
  at("decisions-section").hidden = !rungs.decisions.length;
  at("trials-section").hidden = !trials.total;
  fill(at("rungs"), RUNGS, rungs.rungs);
  drawTables();
  for (const name of ["curves", "history", "parallel", "slices", "timeline", "usage"]) {
    at(`${name}-section`).hidden = !figures[name];
    if (figures[name]) drawFigure(name, figures[name]);
  }
  drawInsight(summary, figures);
}

function nothing(summary, trials) {
  const reports = trials.filter((trial) => trial.epochs).length;
  const error = trials.find((trial) => trial.errors.length || trial.status === "failed");
  if (error) return `No finite ${summary.metric}. Trial ${error.trial}: ${error.errors.at(-1) ?? error.reason}`;
  if (reports) return `No finite ${summary.metric} in what ${reports} trials reported: the training diverges.`;
  return BUSY.includes(summary.state) ? "No report yet." : "The search ended without a report.";
}

function drawTables() {
  const { rungs, trials } = open;
  filtered(at("decisions"), DECISIONS, rungs.decisions, rungs.total, at("decision-filter"), at("decision-count"));
  filtered(at("trials"), TRIALS, trials.trials, trials.total, at("trial-filter"), at("trial-count"));
}

// The first rows are loaded automatically; filtering or sorting loads all rows first.
function needAll() {
  const { rungs, trials } = open;
  const missing = rungs.decisions.length < rungs.total || trials.trials.length < trials.total;
  if (open.whole || !missing) return;
  open.whole = true;
  attempt(() => load(open));
}

function drawFigure(name, figure) {
  if (name !== "curves") return drawInto(at(name), figure, open.name);
  const logs = { xaxis: at("log-epoch").checked, yaxis: at("log-metric").checked };
  drawInto(at(name), figure, open.name, (layout, data) => {
    layout.margin.t = 40;
    for (const side of ["xaxis", "yaxis"]) {
      // A zoom made on one scale means nothing on the other.
      if (logs[side]) Object.assign(layout[side], { type: "log", uirevision: "log", rangemode: "normal" });
    }
    if (logs.xaxis) {
      layout.annotations = layout.annotations.map((a) => ({ ...a, x: Math.log10(a.x) })); // Plotly needs the logarithm
    }
    for (const trace of data) trace.visible = at("show-pruned").checked || trace.meta !== "pruned";
  });
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
  const [name, trial = ""] = location.hash.slice(1).split("/").map(decodeURIComponent);
  if (open?.name !== name || !open?.summary) await show(name);
  if (!open || open.name !== name) return;
  open.trial = trial;
  if (trial && open.summary) await attempt(() => showTrial(trial));
  if (!trial && at("trial").open) at("trial").close();
}

async function show(name) {
  open?.stream?.close();
  clearTimeout(open?.timer);
  clearTimeout(open?.again);
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
const filter = () => {
  if (!open?.rungs) return;
  drawTables();
  needAll();
};
for (const id of ["decision-filter", "trial-filter"]) at(id).addEventListener("input", filter);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
window.addEventListener("hashchange", route);
setInterval(() => open || document.hidden || attempt(showList), 3000);
window.addEventListener("DOMContentLoaded", () => attempt(showSession).then(route)); // by then control.js is loaded
