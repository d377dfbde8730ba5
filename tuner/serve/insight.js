"use strict";
// The sections that are loaded on request: what if, two parameters, importance, the audit, one trial.

const FATES = [
  ["trial", (f) => f.trial, "link", (f) => trialLink(f.trial)], ["would be", (f) => FATE[f.outcome], ""],
  ["epochs", (f) => f.epochs, "number"], ["really", (f) => f.recorded, "number"],
  ["saved", (f) => (f.outcome === "unknown" ? "?" : f.recorded - f.epochs), "number"],
  ["rung", (f) => number(f.rung), "number"], ["value", (f) => number(f.value), "number"],
  ["cutoff", (f) => number(f.cutoff), "number"],
];
const FATE = { stopped: "stopped", ended: "as it was", unknown: "unknown beyond" };
const AUDITED = [
  ["trial", (t) => t.trial, "link", (t) => trialLink(t.trial)], ["stopped at", (t) => t.stopped, "number"],
  ["best", (t) => number(t.best), "number"], ["at epoch", (t) => t.best_epoch, "number"],
  ["beats the winner", (t) => (t.beats ? "yes" : "no"), (t) => (t.beats ? "stop" : "")],
  ["took", (t) => duration(t.seconds), "number"], ["note", (t) => t.differs, "text"],
];

const trialLink = (trial) => `#${encodeURIComponent(open.name)}/${encodeURIComponent(trial)}`;
const path = () => `/api/experiments/${encodeURIComponent(open.name)}`;
const span = ({ least, most }) => (least === most ? String(least) : `${least} to ${most}`);

// Sends a request and draws the response, unless the user opened another experiment or sent another request meanwhile.
async function ask(id, url, draw) {
  const said = at(`${id}-said`);
  const asking = (ask[id] = Symbol(id));
  const began = performance.now();
  Object.assign(at(id).dataset, { again: Infinity, of: open.name });
  try {
    const answer = await get(url);
    if (ask[id] === asking) draw(answer);
  } catch (error) {
    if (ask[id] === asking) {
      set(said, error.message);
      at(id).hidden = true;
      if (id === "whatif") at("fates").parentElement.hidden = true;
    }
  }
  // New events repeat the request, but a request that takes seconds may use at most a tenth of the service's time.
  if (ask[id] === asking) at(id).dataset.again = began + 11 * (performance.now() - began);
}

// --- what if ---------------------------------------------------------------------------------------------------------

function whatIf() {
  const [scheduler, grace, factor, brackets] = ["scheduler", "grace", "factor", "brackets"].map((n) => at(`if-${n}`));
  brackets.disabled = scheduler.value !== "asha";
  grace.disabled = !["asha", "median"].includes(scheduler.value);
  factor.disabled = !["asha", "hyperband"].includes(scheduler.value);
  const asked = new URLSearchParams({ scheduler: scheduler.value, grace_period: grace.value || 1,
    reduction_factor: factor.value || 2, brackets: brackets.disabled ? 1 : brackets.value || 1 });
  ask("whatif", `${path()}/what-if?${asked}`, ({ outcome, figure }) => {
    set(at("whatif-said"), verdict(outcome));
    set(at("whatif-notes"), outcome.notes.join(" "));
    at("whatif").hidden = false;
    drawInto(at("whatif"), figure, open.name, (layout) => { layout.yaxis.type = at("log-metric").checked ? "log" : "-"; });
    const moved = outcome.fates.filter((f) => f.epochs !== f.recorded || f.outcome === "unknown");
    set(at("whatif-moved"), moved.length ? `${moved.length} trials that would have ended otherwise`
      : "No trial would have ended otherwise.");
    fill(at("fates"), FATES, moved.slice(0, MOST_ROWS));
    at("fates").parentElement.hidden = !moved.length;
  });
}

function verdict(o) {
  const lost = { true: "the best trial would have been LOST", false: "the best trial would have been kept",
    null: "whether the best trial would have been kept is not known" }[o.best_lost];
  const saved = { least: o.epochs_recorded - o.epochs.most, most: o.epochs_recorded - o.epochs.least };
  const change = saved.most === 0 && saved.least === 0 ? "as many" : saved.most <= 0 ? `${span({ least: -saved.most, most: -saved.least })} more`
    : saved.least >= 0 ? `${span(saved)} saved` : `between ${saved.most} saved and ${-saved.least} more`;
  const again = o.reproduced === null ? "" : ` Replayed with its own rules, ${o.reproduced} of the ` +
    `${o.stopped_recorded} recorded stops come out again, at the same epoch and cutoff.`;
  return `${span(o.stopped)} trials stopped (really ${o.stopped_recorded}); ${span(o.epochs)} epochs trained ` +
    `(really ${o.epochs_recorded}): ${change}; ${o.best ? lost : "no trial has a finite metric"}.${again}`;
}

function prepareWhatIf(summary) {
  if (at("if-scheduler").dataset.of === open.name) return;
  const replayed = [...at("if-scheduler").options].map((option) => option.value);
  at("if-scheduler").dataset.of = open.name;
  at("if-scheduler").value = replayed.includes(summary.scheduler) ? summary.scheduler : "asha";
  at("if-grace").value = summary.grace_period;
  at("if-factor").value = summary.reduction_factor;
  at("if-brackets").value = 1;
}

// --- parameters ------------------------------------------------------------------------------------------------------

function prepareContour(figures) {
  const names = (figures.parallel?.data[0].dimensions ?? []).slice(0, -1).length;
  at("contour-section").hidden = names < 2;
  at("importance-section").hidden = names < 1;
  if (names < 2) return;
  const known = parameters();
  for (const [id, first] of [["contour-x", 0], ["contour-y", 1]]) {
    const box = at(id);
    if ([...box.options].map((o) => o.value).join("\n") === known.join("\n") && box.dataset.of === open.name) continue;
    box.replaceChildren(...known.map((name) => new Option(name, name)));
    box.dataset.of = open.name;
    box.selectedIndex = first;
  }
}

// The parameters that differ between trials, in the order in which a trial's parameters are recorded.
function parameters() {
  const seen = new Map();
  for (const trial of open.trials.trials) {
    for (const [name, value] of Object.entries(flat(trial.config))) {
      const values = seen.get(name) ?? seen.set(name, new Set()).get(name);
      if (trial.best !== null && values.size < 2) values.add(JSON.stringify(value));
    }
  }
  return [...seen].filter(([, values]) => values.size > 1).map(([name]) => name);
}

const flat = (config, prefix = "") => Object.assign({}, ...Object.entries(config).map(([name, value]) =>
  value !== null && typeof value === "object" && !Array.isArray(value) ? flat(value, `${prefix}${name}/`)
    : { [`${prefix}${name}`]: value }));

function contour() {
  const asked = new URLSearchParams({ x: at("contour-x").value, y: at("contour-y").value });
  ask("contour", `${path()}/contour?${asked}`, ({ figure }) => {
    set(at("contour-said"), "");
    at("contour").hidden = false;
    drawInto(at("contour"), figure, `${open.name} ${asked}`);
  });
}

function importance() {
  set(at("importance-said"), "growing forests ...");
  at("importance").hidden = at("importance").dataset.of !== open.name || !at("importance").data;
  ask("importance", `${path()}/importance`, ({ figure }) => {
    set(at("importance-said"), "");
    at("importance").hidden = false;
    drawInto(at("importance"), figure, open.name);
  });
}

// --- the audit -------------------------------------------------------------------------------------------------------

function audit() {
  ask("audit", `${path()}/audit`, ({ result, command }) => {
    at("audit").hidden = !result;
    set(at("audit-command"), command);
    at("audit-line").hidden = !command;
    if (!result) return set(at("audit-said"), "Not measured yet: how many of the pruned trials would have won?");
    const percent = (share) => `${Math.round(100 * share)} %`;
    set(at("audit-said"), `${result.beat} of ${result.done} pruned trials that were trained to the end would have ` +
      `beaten trial ${result.winner} (${result.metric} ${number(result.winner_value)}): with 95 % confidence ` +
      `${percent(result.low)} to ${percent(result.high)} of the ${result.pruned} pruned.` +
      (result.done < result.asked ? ` ${result.asked - result.done} of the sample are still to be trained.` : ""));
    fill(at("audited"), AUDITED, result.trials);
  });
}

// --- one trial -------------------------------------------------------------------------------------------------------

async function showTrial(id) {
  const box = at("trial");
  const { row, decisions, figure, cost, checkpoint, retrain, logs } =
    await get(`${path()}/trials/${encodeURIComponent(id)}`);
  if (open?.trial !== id) return;
  set(at("trial-name"), `Trial ${row.trial}: ${row.status}`);
  set(at("trial-reason"), row.reason);
  set(at("trial-setting"), setting(row.config));
  set(at("trial-cost"), [cost, row.node && `on ${row.node}`].filter(Boolean).join(" · "));
  set(at("trial-errors"), row.errors.join("\n\n"));
  at("trial-errors").hidden = !row.errors.length;
  set(at("trial-checkpoint"), checkpoint || "none kept");
  set(at("trial-retrain"), retrain);
  at("trial-retrain-line").hidden = !retrain;
  at("trial-decisions-part").hidden = !decisions.length;
  fill(at("trial-decisions"), DECISIONS.slice(1), decisions);
  const shown = logs.map((log) => {
    const part = document.createElement("details");
    part.open = true;
    part.append(Object.assign(document.createElement("summary"), { textContent: `${log.name}, ${log.size_bytes} bytes` }),
      Object.assign(document.createElement("pre"), { textContent: log.tail, tabIndex: 0 }));
    return part;
  });
  at("trial-logs").replaceChildren(...shown);
  if (!box.open) box.showModal();
  at("trial-figure").hidden = !figure.data.length;
  if (figure.data.length) drawInto(at("trial-figure"), figure, id);
}

// --- when ------------------------------------------------------------------------------------------------------------

// Called at each update. A closed section sends no request until the user opens it.
function drawInsight(summary, figures) {
  prepareWhatIf(summary);
  prepareContour(figures);
  at("whatif-section").hidden = !figures.curves;
  at("audit-section").hidden = !summary.counts.pruned || !summary.best;
  for (const [id, show] of FOLDED) {
    const waits = at(id).dataset.of === open.name && performance.now() < Number(at(id).dataset.again);
    if (at(`${id}-section`).open && !at(`${id}-section`).hidden && !waits) show();
  }
}

const FOLDED = [["whatif", whatIf], ["contour", contour], ["importance", importance], ["audit", audit]];
for (const [id, show] of FOLDED) {
  at(`${id}-section`).addEventListener("toggle", () => at(`${id}-section`).open && open?.summary && show());
}
for (const name of ["scheduler", "grace", "factor", "brackets"]) at(`if-${name}`).addEventListener("change", whatIf);
for (const id of ["contour-x", "contour-y"]) at(id).addEventListener("change", contour);
at("trial").addEventListener("close", () => { if (open?.trial) location.hash = encodeURIComponent(open.name); });
at("trial-close").addEventListener("click", () => at("trial").close());
