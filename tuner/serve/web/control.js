// @ts-check
// Starts, stops and resumes searches. The form is generated from the API's schema, which is generated from the command
// line's options. All controls are hidden until the user has signed in; the service checks each request anyway.

import { at, set } from "./dom.js";
import { shown } from "./experiment.js";
import { get, key, post } from "./service.js";

/** @typedef {import("./api.js").Option} Option */

const FIRST = ["space", "num_samples", "max_epochs", "searcher", "scheduler", "name"]; // others: behind "More options"
/** @type {Record<string, string>} Labels that differ from the option's name. */
const LABELS = { num_samples: "number of trials", cpus_per_trial: "CPUs per trial", gpus_per_trial: "GPUs per trial",
  on_oom: "when memory runs out", tensorboard: "TensorBoard logs", max_concurrent_trials: "concurrent trials, at most",
  max_failures: "failures per trial, at most", max_epochs: "epochs per trial, at most" };
let isSignedIn = false;

// --- the session -----------------------------------------------------------------------------------------------------

export async function showSession() {
  /** @type {import("./api.js").SignIn} */
  const session = await get("/api/session", key());
  isSignedIn = session.signed_in && !session.problem;
  at("signin").hidden = session.signed_in || Boolean(session.problem);
  at("signout").hidden = !session.signed_in;
  at("start").hidden = !isSignedIn;
  if (isSignedIn) await makeForm();
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
  const describe = () => set(at("start-about"), spaces.find((space) => space.name === chosen.value)?.about);
  chosen.addEventListener("change", describe);
  describe();
}

/** @param {string} name @param {Option} schema */
function field(name, schema) {
  const kinds = schema.anyOf ?? [schema];
  const choices = schema.enum ?? kinds.flatMap((kind) => kind.enum ?? []);
  const types = kinds.map((kind) => kind.type);
  const input = choices.length ? select(choices, name !== "space") : document.createElement("input");
  if (input instanceof HTMLInputElement) {
    input.type = types.includes("boolean") ? "checkbox" : types.includes("integer") ? "number" : "text";
    input.placeholder = name === "name" ? "generated" : "default";
  }
  input.id = `start-${name}`;
  input.name = name;
  input.title = schema.description ?? "";
  // Converts the text to a number if the schema requires one; other text is sent unchanged, and the service refuses it.
  input.dataset.number = String(types.includes("integer") || types.includes("number"));
  const label = document.createElement("label");
  label.append(LABELS[name] ?? name.replaceAll("_", " "), input);
  return label;
}

/** @param {string[]} choices @param {boolean} hasDefault */
function select(choices, hasDefault) {
  const box = document.createElement("select");
  if (hasDefault) box.add(new Option("default", ""));
  for (const choice of choices) box.add(new Option(choice, choice));
  return box;
}

/**
 * Returns the options that the user filled in.
 *
 * @param {HTMLFormElement} form
 */
function chosen(form) {
  /** @type {Record<string, string | number | boolean>} */
  const options = {};
  for (const input of form.elements) {
    if (!(input instanceof HTMLInputElement || input instanceof HTMLSelectElement) || !input.name) continue;
    if (input instanceof HTMLInputElement && input.type === "checkbox") {
      if (input.checked) options[input.name] = true;
    } else if (input.value) {
      const text = input.value.trim();
      options[input.name] = input.dataset.number === "true" && Number.isFinite(Number(text)) ? Number(text) : text;
    }
  }
  return options;
}

/**
 * Sends a request with the buttons of its form disabled; shows its progress, and its error if it is refused.
 *
 * @param {HTMLFormElement} form
 * @param {HTMLElement} status
 * @param {string} progress
 * @param {() => Promise<void>} work
 */
async function act(form, status, progress, work) {
  const buttons = [...form.querySelectorAll("button")];
  for (const button of buttons) button.disabled = true;
  status.className = "";
  set(status, progress);
  try {
    await work();
    set(status, "");
  } catch (error) {
    status.className = "failed";
    set(status, error instanceof Error ? error.message : error);
  }
  for (const button of buttons) button.disabled = false;
}

// --- stop and resume -------------------------------------------------------------------------------------------------

/** @param {import("./api.js").Shown} summary */
export function showControl(summary) {
  set(at("message"), summary.message);
  at("message").hidden = !summary.message;
  const actions = isSignedIn ? summary.actions : [];
  at("control").hidden = !actions.length;
  at("stop").hidden = !actions.includes("stop");
  at("extend").hidden = !actions.includes("resume");
  at("more-samples", HTMLInputElement).placeholder = String(summary.num_samples);
}

/** @param {"stop" | "resume"} action @param {object} body */
async function control(action, body) {
  const experiment = shown.now;
  if (!experiment) return;
  const progress = action === "stop" ? "requesting the stop ..." : "checking the request ...";
  await act(at("control", HTMLFormElement), at("control-status"), progress, async () => {
    await post(`${experiment.path}/${action}`, body);
    await experiment.load();
  });
}

const startForm = at("start-form", HTMLFormElement), controlForm = at("control", HTMLFormElement);
startForm.addEventListener("submit", (event) => {
  event.preventDefault();
  act(startForm, at("start-status"), "checking the request ...", async () => {
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
