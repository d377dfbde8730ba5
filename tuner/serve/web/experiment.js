// @ts-check
// The experiment on display: its rows and figures, kept up to date. The event stream says when its journal has new
// lines; one request then brings the rows that changed and the figures that the user sees.

import { FIRST_FIGURES, FIRST_ROWS, firstPage } from "./ahead.js";
import { attempt } from "./dom.js";
import { BUSY, get, pathOf } from "./service.js";
import { ALL_ROWS } from "./tables.js";

/** @typedef {import("./api.js").Changes} Changes */
/** @typedef {import("./api.js").Figure} Figure */
/** @typedef {import("./api.js").Summary} Summary */

export { BUSY };
export const FIGURES = ["curves", "rung_values", "lineage", "history", "parallel", "slices", "failing", "timeline",
  "usage"];
const COMPARING = ["parallel", "slices", "usage"]; // figures that compare one value of each trial
// The start and end of a job are not in the journal, and neither is the end of a killed process: the page asks.
const JOB_POLL_MS = 1500; // while a job starts or ends
const POLL_MS = 10000; // while a search runs
const GATHER_MS = 20; // between an event and its request: a trial's end is several lines at once
const LEAST_PAUSE_MS = 800, MOST_PAUSE_MS = 5000, PAUSE_SHARE = 10; // between two updates

/** The experiment on display; null while the page shows the list.
 * @type {{now: Experiment | null}} */
export const shown = { now: null };

/** The sections that are on the screen or close to it.
 * @type {Set<string>} */
export const near = new Set();
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    near[isIntersecting ? "add" : "delete"](target.id);
  }
  shown.now?.scrolled();
}, { rootMargin: "300px" });
for (const section of document.querySelectorAll("#one > :is(section, details)")) observer.observe(section);

/** @param {string} name */
export const isNear = (name) => near.has(`${name}-section`);

export class Experiment {
  /** @type {Changes | null} What is loaded; `trials` and `decisions` are the loaded rows. */
  loaded = null;
  trial = ""; // the trial in the dialog
  values = ""; // which value of each trial figures compare, if the user chose one
  isClosed = false;
  /** @type {number | undefined} */ #update = undefined;
  /** @type {number | undefined} */ #poll = undefined;
  /** @type {number | undefined} */ #retry = undefined;
  /** @type {number | undefined} */ #scroll = undefined;
  /** @type {EventSource | undefined} */ #stream = undefined;
  /** Resolves once all figures that have data are loaded. */
  rest = Promise.resolve();
  #limit = FIRST_ROWS; // rows that are loaded at most; infinite once all are wanted
  #took = 0; // ms of the last load
  #rested = 0; // when the next update may begin
  #isBehind = false; // whether the journal has lines that are not loaded
  #isEnding = false; // whether the last event was the end of the search
  /** @type {Map<string, number>} Figure -> the number of the journal's lines that it shows. */
  #drawn = new Map();
  /** @type {Set<string>} Figures that were requested; some have no data. */
  #asked = new Set();
  #last = Promise.resolve();

  /**
   * @param {string} name
   * @param {(experiment: Changes, figures: string[]) => void} draw shows what is loaded; `figures` have changed
   * @param {(text: string) => void} tell shows the state of the event stream
   */
  constructor(name, draw, tell) {
    this.name = name;
    this.draw = draw;
    this.tell = tell;
    this.path = pathOf(name);
  }

  /** Whether all rows were loaded. */
  get isWhole() {
    return this.#limit === Infinity;
  }

  /** Loads what changed and draws it; one load at a time. From the first call with `all` on, it loads all rows. */
  async load({ all = false, fresh = true, onlyRows = false } = {}) {
    const before = this.#last.catch(() => {});
    this.#last = before.then(async () => {
      const isWider = all && !this.isWhole;
      if (isWider) this.#limit = Infinity;
      await this.#load(isWider || !this.loaded ? 0 : this.loaded.summary.lines, fresh, onlyRows);
    });
    return this.#last;
  }

  /** Loads and draws the first page, then begins to load the other figures: a first page does not wait for them. */
  async open() {
    await this.load();
    this.rest = attempt(() => this.load({ fresh: false }));
  }

  /** Loads the rows that changed, and figures unless only rows are wanted.
   * @param {number} since @param {boolean} fresh whether the journal has new lines @param {boolean} onlyRows @returns {Promise<void>} */
  async #load(since, fresh, onlyRows) {
    if (this.isClosed) return;
    this.#isBehind = false;
    const before = this.loaded, isFirst = !before && !this.isWhole;
    const wanted = isFirst ? FIRST_FIGURES : onlyRows ? [] : FIGURES.filter((name) => (before?.figures[name]
      ? isNear(name) && (fresh || this.#isStale(name)) : fresh || !this.#asked.has(name)));
    const query = new URLSearchParams({ since: String(since), limit: String(since ? ALL_ROWS : Math.min(ALL_ROWS, this.#limit)) });
    for (const name of wanted) query.append("figures", name);
    if (this.values) query.set("values", this.values);
    const began = performance.now();
    /** @type {Changes} */
    const changes = await (isFirst ? firstPage(this.name) : get(`${this.path}/changes?${query}`));
    this.#took = performance.now() - began;
    for (const name of wanted) this.#asked.add(name);
    if (changes.since && (changes.left_out || Math.max(changes.trials.length, changes.decisions.length) >= ALL_ROWS)) {
      return this.#load(0, fresh, onlyRows); // more changed rows than one response has
    }
    if (this.isWhole && !changes.since) await this.#loadRest(changes);
    if (this.isClosed) return;
    const figures = Object.keys(changes.figures);
    const chosen = query.get("values") ?? "";
    for (const name of figures) {
      if (chosen === this.values || !COMPARING.includes(name)) this.#drawn.set(name, changes.summary.lines);
    }
    if (before) changes.figures = { ...before.figures, ...changes.figures };
    if (before && changes.since) {
      changes.trials = merged(before.trials, changes.trials, this.#limit);
      changes.decisions = withNew(before.decisions, changes.decisions, this.#limit);
    }
    this.loaded = changes;
    this.#pollLater(changes.summary);
    this.draw(changes, figures);
  }

  /** Adds the rows beyond those of the first response: a search has more than one response can send.
   * @param {Changes} changes */
  async #loadRest(changes) {
    for (const [rows, part] of /** @type {const} */ ([["trials", "trials"], ["decisions", "rungs"]])) {
      const total = rows === "trials" ? changes.num_trials : changes.num_decisions;
      while (changes[rows].length < total) {
        const more = await get(`${this.path}/${part}?offset=${changes[rows].length}&limit=${ALL_ROWS}`);
        // A search that goes on shifts the decisions: the rows that are loaded stay the first ones.
        if (this.isClosed || !more[rows].length || more.total !== total) break;
        changes[rows].push(...more[rows]);
      }
    }
  }

  /**
   * Compares trials by another value: `best`, `last`, or an epoch.
   *
   * @param {string} values
   */
  compareBy(values) {
    this.values = values;
    for (const name of COMPARING) this.#drawn.delete(name);
    return this.load({ fresh: false });
  }

  /** @param {string} name */
  #isStale(name) {
    return this.#drawn.get(name) !== this.loaded?.summary.lines;
  }

  /** Follows the journal from the last loaded line on. */
  follow() {
    if (!this.loaded || this.isClosed) return;
    this.#stream = new EventSource(`${this.path}/events?after=${this.loaded.summary.lines}`);
    this.#stream.onopen = () => this.tell("live");
    this.#stream.onmessage = ({ data }) => {
      this.#isEnding = /"event": ?"experiment_finished"/.test(data);
      this.#isBehind = true;
      this.updateLater();
    };
    this.#stream.onerror = () => {
      this.tell("reconnecting");
      if (this.#stream?.readyState === EventSource.CLOSED) this.#retry = setTimeout(() => this.follow(), 5000);
    };
  }

  /** Loads what changed, at once if the last update was long enough ago. One update serves all events meanwhile; a hidden
   * page makes none. */
  updateLater() {
    if (document.hidden || !this.#isBehind) return;
    this.#update ??= setTimeout(async () => {
      await attempt(async () => {
        await this.load({ onlyRows: true }); // tables show a new line before the figures are drawn
        const took = this.#took;
        if (!this.isClosed) await this.load();
        // Spares the search: the next update waits ten times as long as this one took, at most 5 s.
        const pause = Math.min(MOST_PAUSE_MS, Math.max(LEAST_PAUSE_MS, PAUSE_SHARE * (took + this.#took)));
        this.#rested = performance.now() + pause;
      });
      this.#update = undefined;
      this.updateLater();
    }, Math.max(GATHER_MS, this.#rested - performance.now()));
  }

  /** Updates the sections that came onto the screen; loads their figures if these are older than the rows. */
  scrolled() {
    this.#scroll ??= setTimeout(() => {
      this.#scroll = undefined;
      if (FIGURES.some((name) => this.loaded?.figures[name] && isNear(name) && this.#isStale(name))) {
        attempt(() => this.load({ fresh: false }));
      } else if (this.loaded) this.draw(this.loaded, []);
    }, 150);
  }

  /** @param {Summary} summary */
  #pollLater(summary) {
    clearTimeout(this.#poll);
    if (this.isClosed || !BUSY.includes(summary.state)) return;
    const pause = summary.state === "running" && !this.#isEnding ? POLL_MS : JOB_POLL_MS;
    this.#poll = setTimeout(() => (document.hidden ? this.#pollLater(summary) : attempt(() => this.#ask(summary))), pause);
  }

  /** @param {Summary} before */
  async #ask(before) {
    try {
      /** @type {Summary} */
      const now = await get(this.path);
      const seen = this.loaded?.summary ?? before;
      const isSame = now.state === seen.state && now.message === seen.message && now.lines <= seen.lines
        && String(now.actions) === String(seen.actions) && now.waits_for === seen.waits_for && (now.lines > 0 || now.updated === seen.updated);
      if (!isSame) await this.load({ fresh: now.lines !== seen.lines });
    } finally {
      this.#pollLater(this.loaded?.summary ?? before);
    }
  }

  close() {
    this.isClosed = true;
    this.#stream?.close();
    for (const timer of [this.#update, this.#poll, this.#retry, this.#scroll]) clearTimeout(timer);
  }
}

/**
 * Returns the first rows in the order of the trials; changed rows replace their earlier versions.
 *
 * @param {import("./api.js").TrialRow[]} rows
 * @param {import("./api.js").TrialRow[]} changed
 * @param {number} limit
 */
function merged(rows, changed, limit) {
  const known = new Map(rows.map((row) => [row.trial, row]));
  for (const row of changed) if (known.has(row.trial) || known.size < limit) known.set(row.trial, row);
  return [...known.values()];
}

/**
 * Returns the decisions with the smallest margins; those of changed trials replace the earlier ones of these trials.
 * A journal only adds decisions.
 *
 * @param {import("./api.js").DecisionRow[]} decisions
 * @param {import("./api.js").DecisionRow[]} changed
 * @param {number} limit
 */
function withNew(decisions, changed, limit) {
  const trials = new Set(changed.map((decision) => decision.trial));
  const all = [...decisions.filter((decision) => !trials.has(decision.trial)), ...changed];
  return all.sort((a, b) => (a.margin ?? Infinity) - (b.margin ?? Infinity) || 0).slice(0, limit);
}
