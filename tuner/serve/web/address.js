// @ts-check
// The page's address: `#name/trial/place?pin=00001&pin=00002`. A place is a tab of the page or a section of one.

/** @param {string} part of an address that somebody may have typed: a lone `%` is no code */
const decoded = (part) => decodeURIComponent(part.replace(/%(?![0-9a-f]{2})/gi, "%25"));

/** Reads the address. `pins` is null if it names none. */
export function readAddress() {
  const hash = location.hash.slice(1), at = hash.indexOf("?");
  const [name, trial = "", place = ""] = (at < 0 ? hash : hash.slice(0, at)).split("/").map(decoded);
  const pins = at < 0 ? [] : new URLSearchParams(hash.slice(at + 1)).getAll("pin");
  return { name, trial, place, pins: pins.length ? pins : null };
}

/** @param {string} name @param {string} [trial] @param {string} [place] where the page is behind the trial's dialog */
export function addressOf(name, trial = "", place = "") {
  const parts = place ? [name, trial, place] : trial ? [name, trial] : [name];
  return `#${parts.map(encodeURIComponent).join("/")}`;
}

/** Returns the address of a trial's dialog over the place that is open.
 * @param {string} trial */
export function addressOfTrial(trial) {
  const { name, place } = readAddress();
  return addressOf(name, trial, place);
}

/** Writes the pinned trials into the address without loading anything, so that a link to the page has them.
 * @param {Iterable<string>} pins */
export function writePins(pins) {
  const [path] = location.hash.split("?"), query = new URLSearchParams([...pins].map((pin) => ["pin", pin])).toString();
  const hash = query ? `${path}?${query}` : path;
  if (hash !== location.hash) history.replaceState(history.state, "", hash || location.pathname);
}
