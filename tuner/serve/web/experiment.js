// @ts-check
// The experiment on display: its rows and figures, kept up to date. The event stream says when its journal has new
// lines; one request then brings the rows that changed and the figures that the user sees.

import { FIGURES, FIRST_ROWS, firstFigures, firstPage } from "./ahead.js";
import { attempt } from "./dom.js";
import { BUSY, get, pathOf } from "./service.js";
import { ALL_ROWS } from "./tables.js";

/** @typedef {import("./api.js").Changes} Changes */
/** @typedef {import("./api.js").Figure} Figure */
/** @typedef {import("./api.js").Summary} Summary */

/** @typedef {"trials" | "decisions"} Kind of rows */

export { BUSY, FIGURES };
const COMPARING = ["parallel", "slices", "usage"]; // figures that compare one value of each trial
// The start and end of a job are not in the journal, and neither is the end of a killed process: the page asks.
const GONE = 404;
const JOB_POLL_MS = 1500; // while a job starts or ends
const POLL_MS = 10000; // while a search runs
const GATHER_MS = 5; // between an event and its request: a trial's end is several lines at once
const LEAST_PAUSE_MS = 800, MOST_PAUSE_MS = 5000, PAUSE_SHARE = 10; // between two updates

/** The experiment on display; null while the page shows the list.
 * @type {{now: Experiment | null}} */
export const shown = { now: null };

/** Returns how many trials have started.
 * @param {Summary} summary */
export const numTrials = (summary) => Object.values(summary.counts).reduce((sum, n) => sum + n, 0);

/** The sections that are on the screen or close to it.
 * @type {Set<string>} */
export const near = new Set();
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    near[isIntersecting ? "add" : "delete"](target.id);
  }
  shown.now?.scrolled();
}, { rootMargin: "300px" });
for (const section of document.querySelectorAll(".tab > :is(section, details)")) observer.observe(section);

/** @param {string} name */
export const isNear = (name) => near.has(`${name}-section`);

export class Experiment {
  /** @type {Changes | null} What is loaded; `trials` and `decisions` are the loaded rows. */
  loaded = null;
  trial = ""; // the trial in the dialog
  values = ""; // which value of each trial figures compare, if the user chose one, and of which metric
  axis = ""; // over what the curves are drawn, if the user chose it, and which metric
  isClosed = false;
  #gone = ""; // why nothing more can be loaded
  /** @type {number | undefined} */ #update = undefined;
  /** @type {number | undefined} */ #poll = undefined;
  /** @type {number | undefined} */ #retry = undefined;
  /** @type {number | undefined} */ #scroll = undefined;
  /** @type {EventSource | undefined} */ #stream = undefined;
  /** Resolves once all figures that have data are loaded. */
  rest = Promise.resolve();
  /** @type {Set<Kind>} Of which all rows are loaded, not only the first. */
  #whole = new Set();
  /** @type {Map<string, {state: string, answer: Promise<import("./api.js").OneTrial>}>} */
  #details = new Map();
  #took = 0; // ms of the last load
  #rested = 0; // when the next update may begin
  #isBehind = false; // whether the journal has lines that are not loaded
  #isEnding = false; // whether the last event was the end of the search
  /** @type {Map<string, number>} Figure -> the number of the journal's lines that it shows. */
  #drawn = new Map();
  /** @type {Set<string>} Figures that were requested; some have no data. */
  #asked = new Set();
  #last = Promise.resolve();

  /** @param {string} name
   * @param {(experiment: Changes, figures: string[]) => void} draw shows what is loaded; `figures` have changed
   * @param {(text: string) => void} tell shows the state of the event stream */
  constructor(name, draw, tell) {
    this.name = name;
    this.draw = draw;
    this.tell = tell;
    this.path = pathOf(name);
  }

  /** Loads what changed and draws it; one load at a time. */
  load({ fresh = true, onlyRows = false } = {}) {
    return this.#inTurn(() => this.#load(this.loaded?.summary.lines ?? 0, fresh, onlyRows));
  }

  /** @param {() => Promise<void>} work */
  #inTurn(work) {
    this.#last = this.#last.catch(() => {}).then(() => {
      if (this.#gone) throw new Error(this.#gone);
      return work();
    });
    return this.#last;
  }

  /** Loads the rows of a kind that are missing; from then on, all of them are kept.
   * @param {Kind} kind */
  loadAll(kind) {
    return this.#inTurn(async () => {
      if (this.#whole.has(kind)) return;
      const part = kind === "trials" ? "trials" : "rungs";
      /** @type {any[]} */
      let rows = [];
      for (let total = Infinity; rows.length < total;) {
        const more = await get(`${this.path}/${part}?offset=${rows.length}&limit=${ALL_ROWS}`);
        if (this.isClosed || !this.loaded || !more[kind].length) return;
        // A search that goes on shifts the decisions: they are loaded from the first one again.
        rows = rows.length && more.total !== total ? [] : [...rows, ...more[kind]];
        total = more.total;
      }
      this.#whole.add(kind);
      if (this.loaded) this.draw(this.loaded = { ...this.loaded, [kind]: rows }, []);
    });
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
    const before = this.loaded, isFirst = !before;
    const wanted = isFirst ? firstFigures() : onlyRows ? [] : FIGURES.filter((name) => (before?.figures[name]
      ? isNear(name) && (fresh || this.#isStale(name)) : fresh || !this.#asked.has(name)));
    const query = new URLSearchParams({ since: String(since), limit: String(since ? ALL_ROWS : FIRST_ROWS) });
    for (const name of wanted) query.append("figures", name);
    for (const choice of /** @type {const} */ (["values", "axis"])) if (this[choice]) query.set(choice, this[choice]);
    const began = performance.now();
    /** @type {Changes} */
    const changes = await (isFirst ? firstPage(this.name) : get(`${this.path}/changes?${query}`));
    this.#took = performance.now() - began;
    for (const name of wanted) this.#asked.add(name);
    if (changes.since && (changes.left_out || Math.max(changes.trials.length, changes.decisions.length) >= ALL_ROWS)) {
      this.#whole.clear();
      return this.#load(0, fresh, onlyRows); // more changed rows than one response has
    }
    if (this.isClosed) return;
    const figures = Object.keys(changes.figures);
    for (const name of figures) {
      const choice = COMPARING.includes(name) ? "values" : "axis"; // the user may have chosen another one meanwhile
      if ((query.get(choice) ?? "") === this[choice]) this.#drawn.set(name, changes.summary.lines);
    }
    if (before) changes.figures = { ...before.figures, ...changes.figures };
    if (before && changes.since) {
      changes.columns = before.columns;
      changes.trials = merged(before.trials, changes.trials, this.#most("trials"));
      changes.decisions = withNew(before.decisions, changes.decisions, this.#most("decisions"));
    }
    this.loaded = changes;
    if (this.#stream?.readyState === EventSource.OPEN) this.tell(this.isBusy ? "live" : "");
    this.#pollLater(changes.summary);
    this.draw(changes, figures);
  }

  /** Loads everything about one trial; it is loaded once until the trial changes.
   * @param {string} trial @returns {Promise<import("./api.js").OneTrial>} */
  details(trial) {
    const row = this.loaded?.trials.find((each) => each.trial === trial), state = `${row?.epochs} ${row?.status}`, known = this.#details.get(trial);
    if (known?.state === state) return known.answer;
    const answer = get(`${this.path}/trials/${encodeURIComponent(trial)}`);
    this.#details.set(trial, { state, answer });
    answer.catch(() => this.#details.delete(trial));
    return answer;
  }

  /** How many rows of a kind are kept.
   * @param {Kind} kind */
  #most(kind) {
    return this.#whole.has(kind) ? Infinity : FIRST_ROWS;
  }

  /** Draws figures by another choice: those that compare trials by another value (`best`, `last:accuracy`, `4`), or the
   * curves over another axis or of another metric (`time`, `epoch:accuracy`).
   * @param {"values" | "axis"} choice @param {string} value */
  choose(choice, value) {
    this[choice] = value;
    for (const name of choice === "values" ? COMPARING : ["curves"]) this.#drawn.delete(name);
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
    this.#stream.onopen = () => this.tell(this.isBusy ? "live" : "");
    this.#stream.onmessage = ({ data }) => {
      this.#isEnding = /"event": ?"experiment_finished"/.test(data);
      this.#isBehind = true;
      this.updateLater();
    };
    this.#stream.onerror = () => {
      this.tell("reconnecting");
      if (this.#stream?.readyState === EventSource.CLOSED) this.#reconnect();
    };
  }

  /** Follows the journal again after a while, unless the experiment is gone. */
  async #reconnect() {
    const status = await get(this.path).then(() => 0, (error) => error.status);
    if (this.isClosed) return;
    if (status !== GONE) this.#retry = setTimeout(() => this.follow(), 5000);
    else {
      this.close();
      this.tell("gone");
      this.#gone = `${this.name} is no longer there: its folder was deleted, renamed or moved. This page shows its last state and `
        + "is not updated any more; the list shows what is there.";
      attempt(() => this.load());
    }
  }

  /** Whether a search is under way. */
  get isBusy() {
    return BUSY.includes(this.loaded?.summary.state ?? "");
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
      if (!this.isClosed && FIGURES.some((name) => this.loaded?.figures[name] && isNear(name) && this.#isStale(name))) {
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
    } catch (error) {
      if (/** @type {any} */ (error).status !== GONE) throw error;
      await this.#reconnect();
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

/** Returns the first rows in the order of the trials; changed rows replace their earlier versions.
 * @param {import("./api.js").TrialRow[]} rows @param {import("./api.js").TrialRow[]} changed @param {number} limit */
function merged(rows, changed, limit) {
  const known = new Map(rows.map((row) => [row.trial, row]));
  for (const row of changed) if (known.has(row.trial) || known.size < limit) known.set(row.trial, row);
  return [...known.values()];
}

/** Returns the closest decisions; those of changed trials replace the earlier ones of these trials.
 * A journal only adds decisions.
 * @param {import("./api.js").DecisionRow[]} decisions @param {import("./api.js").DecisionRow[]} changed
 * @param {number} limit */
function withNew(decisions, changed, limit) {
  const trials = new Set(changed.map((decision) => decision.trial));
  const all = [...decisions.filter((decision) => !trials.has(decision.trial)), ...changed];
  return all.sort((a, b) => distance(a) - distance(b) || 0).slice(0, limit);
}

/** Returns by what decisions are ordered. A trial that continues with margin 0 is last: its own value is the cutoff.
 * @param {import("./api.js").DecisionRow} decision */
const distance = ({ margin, action }) => (margin === null || (margin === 0 && action !== "stop") ? Infinity : margin);
