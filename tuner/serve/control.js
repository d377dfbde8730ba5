"use strict";
// Starts, stops and resumes searches. The form is generated from the API's schema, which is generated from the command
// line's options. All controls are hidden until the user has signed in; the service checks each request anyway.

const FIRST = ["space", "num_samples", "max_epochs", "searcher", "scheduler", "name"]; // others: behind "more"
const session = { signedIn: false, watching: null };

// The cookie alone may not start a search, because the browser sends it to every port of this host. The key from the
// sign-in page stays in this page's storage.
function key() {
  try {
    if (location.hash.startsWith("#key=")) {
      localStorage.setItem("tuner-key", location.hash.slice(5));
      history.replaceState(null, "", "/");
    }
    return { "X-Tuner-Key": localStorage.getItem("tuner-key") ?? "" };
  } catch {
    return {}; // the browser blocks storage: the user cannot sign in and may only read
  }
}

async function post(path, body) {
  const answer = await fetch(path, { method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", ...key() } });
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error);
  return said;
}

// --- the session -----------------------------------------------------------------------------------------------------

async function showSession() {
  const { signed_in: signedIn, problem } = await get("/api/session", key());
  session.signedIn = signedIn && !problem;
  at("signin").hidden = signedIn || Boolean(problem);
  at("signout").hidden = !signedIn;
  at("start").hidden = !session.signedIn;
  if (session.signedIn) await makeForm();
}

// --- start -----------------------------------------------------------------------------------------------------------

async function makeForm() {
  const [{ spaces }, api] = await Promise.all([get("/api/spaces"), get("/api/openapi.json")]);
  const { properties } = api.components.schemas.Start;
  const options = { ...properties, space: { ...properties.space, enum: spaces.map((space) => space.name) } };
  for (const [name, schema] of Object.entries(options)) {
    at(FIRST.includes(name) ? "start-fields" : "start-more").append(field(name, schema));
  }
  for (const name of FIRST.toReversed()) at("start-fields").prepend(at(`start-${name}`).parentElement);
  const about = Object.fromEntries(spaces.map((space) => [space.name, space.about]));
  const describe = () => set(at("start-about"), about[at("start-space").value]);
  at("start-space").addEventListener("change", describe);
  describe();
}

function field(name, schema) {
  const kinds = schema.anyOf ?? [schema];
  const choices = schema.enum ?? kinds.flatMap((kind) => kind.enum ?? []);
  const types = kinds.map((kind) => kind.type);
  const input = document.createElement(choices.length ? "select" : "input");
  if (choices.length) {
    const own = name === "space" ? [] : [["", "default"]];
    for (const [value, text] of [...own, ...choices.map((choice) => [choice, choice])]) input.add(new Option(text, value));
  } else if (types.includes("boolean")) input.type = "checkbox";
  else {
    input.type = types.includes("integer") ? "number" : "text";
    input.placeholder = name === "name" ? "made for you" : "default";
  }
  input.id = `start-${name}`;
  input.name = name;
  input.title = schema.description ?? "";
  // Converts the text to a number if the schema requires one; other text is sent unchanged, and the service refuses it.
  input.dataset.number = String(types.includes("integer") || types.includes("number"));
  const label = document.createElement("label");
  label.append(name.replaceAll("_", " "), input);
  return label;
}

function given(form) {
  const inputs = [...form.elements].filter((input) => input.name && (input.type === "checkbox" ? input.checked : input.value));
  return Object.fromEntries(inputs.map((input) => [input.name, value(input)]));
}

function value(input) {
  if (input.type === "checkbox") return true;
  const text = input.value.trim();
  return input.dataset.number === "true" && Number.isFinite(Number(text)) ? Number(text) : text;
}

async function act(form, said, busy, work) {
  const buttons = [...form.querySelectorAll("button")];
  for (const button of buttons) button.disabled = true;
  said.className = "";
  set(said, busy);
  try {
    await work();
    set(said, "");
  } catch (error) {
    said.className = "failed";
    set(said, error.message);
  }
  for (const button of buttons) button.disabled = false;
}

// --- stop and resume -------------------------------------------------------------------------------------------------

function showControl(summary) {
  set(at("message"), summary.message);
  at("message").hidden = !summary.message;
  const actions = session.signedIn ? summary.actions : [];
  at("control").hidden = !actions.length;
  at("stop").hidden = !actions.includes("stop");
  at("extend").hidden = !actions.includes("resume");
  at("more-samples").placeholder = summary.num_samples;
  clearTimeout(session.watching);
  // The start and end of a job are not in the journal, so the page polls its state while the search is under way.
  if (BUSY.includes(summary.state)) session.watching = setTimeout(() => watch(summary), 1500);
}

const BUSY = ["queued", "starting", "running", "stopping"];

async function watch(before) {
  if (open?.name !== before.name) return;
  await attempt(async () => {
    const now = await get(`/api/experiments/${encodeURIComponent(before.name)}`);
    if (open?.name !== before.name) return;
    const changed = ["state", "message", "actions"].some((key) => String(now[key]) !== String(before[key]));
    if (changed) await load(open);
    else showControl(now);
  });
}

async function control(action, body) {
  await act(at("control"), at("control-said"), action === "stop" ? "asking it to stop" : "checking", async () => {
    await post(`/api/experiments/${encodeURIComponent(open.name)}/${action}`, body);
    await load(open);
  });
}

at("start-form").addEventListener("submit", (event) => {
  event.preventDefault();
  act(event.target, at("start-said"), "checking", async () => {
    const { name } = await post("/api/experiments", given(event.target));
    location.hash = `#${name}`;
  });
});
at("control").addEventListener("submit", (event) => {
  event.preventDefault();
  control("resume", given(event.target));
});
at("stop").addEventListener("click", () => control("stop", {}));
at("signout").addEventListener("click", async () => {
  await fetch("/signout", { method: "POST", headers: key() });
  localStorage.removeItem("tuner-key");
  location.reload();
});
