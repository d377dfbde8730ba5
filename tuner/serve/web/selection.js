// @ts-check
// The trials that the user has selected, pinned and hidden: one store, which all figures and tables show.

/** @typedef {ReadonlySet<string>} Trials */
/** @typedef {{selected: Trials, pinned: Trials, hidden: Trials}} Choice `pinned` is in the order of pinning */

export const MOST_PINNED = 8; // more cannot be told apart side by side
const LONGEST_TRIAL = 200; // characters of a trial's name in the page's address
/** @type {Choice} */
const NOTHING = { selected: new Set(), pinned: new Set(), hidden: new Set() };

/** The current choice. It is never changed in place: two states can be compared.
 * @type {{now: Choice}} */
export const choice = { now: NOTHING };
/** @type {((now: Choice, before: Choice) => void)[]} */
const listeners = [];

/** Calls a function after each change.
 * @param {(now: Choice, before: Choice) => void} listener */
export function subscribe(listener) {
  listeners.push(listener);
}

let experiment = ""; // whose trials these are
/** @param {string} name */
const keyOf = (name) => `tuner-choice ${name}`;

/** @param {Partial<Choice>} part */
function change(part) {
  const before = choice.now;
  choice.now = { ...before, ...part };
  if (experiment) keep();
  for (const listener of listeners) listener(choice.now, before);
}

/** Selects trials instead of the selected ones, or in addition to them. The same action again deselects them.
 * @param {string[]} trials @param {boolean} isAdded */
export function select(trials, isAdded = false) {
  const { selected } = choice.now, isAgain = trials.every((trial) => selected.has(trial));
  if (isAdded) change({ selected: isAgain ? without(selected, trials) : new Set([...selected, ...trials]) });
  else change({ selected: new Set(isAgain && selected.size === trials.length ? [] : trials) });
}

export function clear() {
  if (choice.now.selected.size) change({ selected: NOTHING.selected });
}

/** Pins trials; unpins them if all are pinned. Only the first MOST_PINNED are pinned.
 * @param {string[]} trials */
export function togglePins(trials) {
  const { pinned } = choice.now;
  setPins(trials.every((trial) => pinned.has(trial)) ? [...without(pinned, trials)] : [...pinned, ...trials]);
}

/** @param {string[]} trials */
export function setPins(trials) {
  const pinned = new Set([...new Set(trials)].filter((trial) => trial && trial.length <= LONGEST_TRIAL).slice(0, MOST_PINNED));
  if ([...pinned].join("\n") !== [...choice.now.pinned].join("\n")) change({ pinned });
}

/** Hides trials in all figures and tables; they are no longer selected.
 * @param {Iterable<string>} trials */
export function hide(trials) {
  const all = new Set(trials);
  change({ hidden: new Set([...choice.now.hidden, ...all]), selected: without(choice.now.selected, all) });
}

export function showHidden() {
  if (choice.now.hidden.size) change({ hidden: NOTHING.hidden });
}

/** Takes the choice that this tab last had for an experiment, also after a reload; none for an empty name.
 * @param {string} name */
export function open(name) {
  experiment = "";
  change(kept(name));
  experiment = name;
}

/** Stores the choice for this tab, because thousands of hidden trials do not fit into an address. */
function keep() {
  try {
    sessionStorage.setItem(keyOf(experiment), JSON.stringify(choice.now, (_, value) => (value instanceof Set ? [...value] : value)));
  } catch { /* the browser blocks storage, or it is full: a reload forgets the choice */ }
}

/** @param {string} name @returns {Choice} */
function kept(name) {
  try {
    const stored = JSON.parse(sessionStorage.getItem(keyOf(name)) ?? "{}");
    const [selected, pinned, hidden] = ["selected", "pinned", "hidden"].map((part) => new Set(/** @type {string[]} */ (stored[part] ?? [])));
    return { selected, pinned, hidden };
  } catch {
    return NOTHING;
  }
}

/** @param {Trials} trials @param {Iterable<string>} left */
function without(trials, left) {
  const rest = new Set(trials);
  for (const trial of left) rest.delete(trial);
  return rest;
}
