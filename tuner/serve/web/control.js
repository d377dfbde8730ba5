// @ts-check
// Starts, stops, resumes and extends searches. The form is generated from the API's schema, which is generated from the
// command line's options. All controls are hidden until the user has signed in; the service checks each request anyway.

import { at, attempt, duration, el, set, tell } from "./dom.js";
import { BUSY, numTrials, shown } from "./experiment.js";
import { get, key, post } from "./service.js";

/** @typedef {import("./api.js").Option} Option */

const FIRST = ["space", "num_samples", "max_epochs", "searcher", "scheduler", "name"]; // others: behind "More options"
/** @type {Record<string, string>} Labels that differ from the option's name. */
const LABELS = { num_samples: "number of trials", cpus_per_trial: "CPUs per trial", gpus_per_trial: "GPUs per trial",
  on_oom: "when memory runs out", tensorboard: "TensorBoard logs", max_concurrent_trials: "concurrent trials, at most",
  max_failures: "failures per trial, at most", max_epochs: "epochs per trial, at most" };
/** @type {Record<string, string>} What the default of an option means, if its value does not say it. */
const MEANINGS = { name: "space and time", time_budget: "no limit", gpu_hours: "no limit", cpu_hours: "no limit",
  epoch_budget: "no limit", trial_timeout: "no limit",
  max_concurrent_trials: "as many as fit", perturbation_interval: "the grace period",
  prune_by: "the metric" };
/** Whether this user may change experiments, and may start searches. */
export const session = { isSignedIn: false, mayStart: false };

// --- the session -----------------------------------------------------------------------------------------------------

export async function showSession() {
  /** @type {import("./api.js").SignIn} */
  const { signed_in, problem } = await get("/api/session", key());
  session.isSignedIn = signed_in;
  session.mayStart = signed_in && !problem;
  at("signin").hidden = signed_in;
  at("signout").hidden = !signed_in;
  tell("start-problem", signed_in ? problem : "");
  if (session.mayStart && !at("start-fields").children.length) attempt(makeForm); // the first view does not wait for it: the API's schema takes seconds
}

// --- start -----------------------------------------------------------------------------------------------------------

async function makeForm() {
  const [{ spaces }, api] = await Promise.all([
    /** @type {Promise<import("./api.js").SpaceChoices>} */ (get("/api/spaces")), get("/api/openapi.json")]);
  /** @type {Record<string, Option>} */
  const properties = api.components.schemas.Start.properties;
  properties.space.enum = spaces.map((space) => space.name);
  const names = Object.keys(properties);
  for (const name of [...FIRST, ...names.filter((each) => !FIRST.includes(each))]) {
    at(FIRST.includes(name) ? "start-fields" : "start-more").append(field(name, properties[name]));
  }
  const chosen = at("start-space", HTMLSelectElement);
  const describe = () => {
    const space = spaces.find((each) => each.name === chosen.value);
    set(at("start-about"), space?.about);
    for (const name of names) showDefault(at(`start-${name}`), name, space?.defaults[name]);
  };
  chosen.addEventListener("change", describe);
  describe();
  at("start").hidden = false;
}

/** @param {string} name @param {Option} schema */
function field(name, schema) {
  const kinds = schema.anyOf ?? [schema];
  const choices = schema.enum ?? kinds.flatMap((kind) => kind.enum ?? []);
  const types = kinds.map((kind) => kind.type);
  const input = choices.length ? select(choices, name !== "space") : document.createElement("input");
  if (input instanceof HTMLInputElement) {
    input.type = types.includes("boolean") ? "checkbox" : types.includes("integer") ? "number" : "text";
  }
  input.id = `start-${name}`;
  input.name = name;
  input.title = schema.description ?? "";
  // Converts the text to a number if the schema requires one; other text is sent unchanged, and the service refuses it.
  input.dataset.number = String(types.includes("integer") || types.includes("number"));
  return el("label", {}, LABELS[name] ?? name.replaceAll("_", " "), input);
}

/** Shows the value that an option has if the user leaves it out; the space decides it where it is undefined.
 * @param {HTMLElement} input @param {string} name @param {unknown} value */
function showDefault(input, name, value) {
  const text = value === undefined ? "set by the space" : value ? String(value) : MEANINGS[name] ?? String(value);
  if (input instanceof HTMLSelectElement && name !== "space") input.options[0].text = `${text} (default)`;
  if (input instanceof HTMLInputElement) input.placeholder = text;
}

/** @param {string[]} choices @param {boolean} hasDefault */
function select(choices, hasDefault) {
  return el("select", {}, ...(hasDefault ? [new Option("", "")] : []), ...choices.map((choice) => new Option(choice, choice)));
}

/** Returns the options that the user filled in.
 * @param {HTMLFormElement} form */
function chosen(form) {
  /** @type {Record<string, string | number | boolean>} */
  const options = {};
  for (const [name, value] of new FormData(form)) {
    const input = /** @type {HTMLInputElement} */ (form.elements.namedItem(name)), text = String(value).trim();
    if (input.type === "checkbox") options[name] = true;
    else if (text) options[name] = input.dataset.number === "true" && Number.isFinite(Number(text)) ? Number(text) : text;
  }
  return options;
}

/** Sends a request with the buttons of its form disabled; shows its progress and for how long it takes, then its error
 * if it is refused.
 * @param {HTMLFormElement} form @param {HTMLElement} status @param {string} progress @param {() => Promise<void>} work
 * @param {string} done what is shown at the end */
export async function act(form, status, progress, work, done = "") {
  if (form.ariaBusy === "true") return; // Enter in a field sends a form whose button is disabled, too
  form.ariaBusy = "true";
  const buttons = [...form.querySelectorAll("button")].filter((button) => !button.disabled), began = Date.now();
  for (const button of buttons) button.disabled = true;
  status.className = "";
  const tell = () => set(status, `${progress}, ${duration((Date.now() - began) / 1000)}`);
  tell();
  const clock = setInterval(tell, 1000);
  try {
    await work();
    set(status, done);
    if (!session.isSignedIn) showSession().catch(() => {}); // the user signed in again in another window
  } catch (error) {
    status.className = "failed";
    set(status, error instanceof Error ? error.message : error);
    if (/** @type {any} */ (error).status === 401) await showSession().catch(() => {}); // the buttons of a session that has ended go
  } finally {
    clearInterval(clock);
  }
  for (const button of buttons) button.disabled = false;
  form.ariaBusy = "false";
}

// --- stop and resume -------------------------------------------------------------------------------------------------

let controlOf = ""; // the experiment whose limits are typed
const CHECKING = "checking the request: a process imports the space";

/** @param {import("./api.js").Summary} summary */
export function showControl(summary) {
  if (controlOf !== summary.name) { // what was typed for another search must not extend this one
    controlOf = summary.name;
    controlForm.reset();
    set(at("control-status"), "");
  }
  tellWait();
  const actions = session.mayStart ? summary.actions : [], mayResume = actions.includes("resume");
  at("control").hidden = !actions.includes("stop") && (!mayResume || Boolean(summary.not_resumed));
  at("stop").hidden = !actions.includes("stop");
  at("extend").hidden = !mayResume || Boolean(summary.not_resumed);
  const mayAsk = session.mayStart && (mayResume || summary.outcome === "refused"), why = summary.not_resumed || summary.same_epochs;
  tell("not-extended", mayAsk && why ? `${summary.not_resumed ? "This page cannot extend the search" : "The epochs per trial stay as they are"}: ${why}.` : "");
  set(at("resume-button"), summary.state === "finished" ? "Extend" : "Resume");
  at("more-samples", HTMLInputElement).placeholder = `${summary.num_samples || "no limit"} now`;
  const epochs = at("more-epochs", HTMLInputElement);
  epochs.placeholder = `${summary.max_epochs} now`;
  epochs.disabled = Boolean(summary.same_epochs);
}

/** Says what the search waits for and since when, or why it failed. */
function tellWait() {
  const summary = shown.now?.loaded?.summary;
  if (!summary) return;
  const { state, waits_for, message } = summary, isUnreported = state === "running" && !summary.epochs;
  const what = waits_for || (isUnreported ? `waiting for ${numTrials(summary) ? "the first report" : "a worker"}` : "");
  const since = summary.waits_since ?? (isUnreported ? summary.updated : null);
  const wait = what && since ? `${state}: ${what}, ${duration(Math.max(0, Date.now() / 1000 - since))}` : "";
  tell("message", wait || message);
}

setInterval(() => BUSY.includes(shown.now?.loaded?.summary.state ?? "") && tellWait(), 1000);

/** @param {"stop" | "resume"} action @param {object} body */
async function control(action, body) {
  const experiment = shown.now;
  if (!experiment) return;
  await act(at("control", HTMLFormElement), at("control-status"), action === "stop" ? "requesting the stop" : CHECKING, async () => {
    if (action === "resume" && experiment.loaded?.summary.state === "finished" && !Object.keys(body).length) {
      throw new Error(experiment.loaded.summary.outcome === "out of time"
        ? "the search has used up its budget: give a larger one"
        : "the search has trained all its trials: give more trials or more epochs per trial");
    }
    await post(`${experiment.path}/${action}`, body);
    await experiment.load();
  });
}

const startForm = at("start-form", HTMLFormElement), controlForm = at("control", HTMLFormElement);
startForm.addEventListener("submit", (event) => {
  event.preventDefault();
  act(startForm, at("start-status"), CHECKING, async () => {
    const { name } = await post("/api/experiments", chosen(startForm));
    location.hash = `#${name}`;
  });
});
controlForm.addEventListener("submit", (event) => {
  event.preventDefault();
  control("resume", chosen(controlForm));
});
at("stop").addEventListener("click", () => control("stop", {}));
at("signout").addEventListener("click", async () => {
  await fetch("/signout", { method: "POST", headers: key() });
  localStorage.removeItem("tuner-key");
  location.reload();
});
