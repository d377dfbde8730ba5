// @ts-check
// The page's address: `#name/trial/section?pin=00001&pin=00002`.

/** Reads the address. `pins` is null if it names none. */
export function readAddress() {
  const hash = location.hash.slice(1), at = hash.indexOf("?");
  const [name, trial = "", section = ""] = (at < 0 ? hash : hash.slice(0, at)).split("/").map(decodeURIComponent);
  const pins = at < 0 ? [] : new URLSearchParams(hash.slice(at + 1)).getAll("pin");
  return { name, trial, section, pins: pins.length ? pins : null };
}

/** @param {string} name @param {string} [trial] */
export const addressOf = (name, trial) =>
  `#${encodeURIComponent(name)}${trial === undefined ? "" : `/${encodeURIComponent(trial)}`}`;

/**
 * Writes the pinned trials into the address without loading anything, so that a link to the page has them.
 *
 * @param {Iterable<string>} pins
 */
export function writePins(pins) {
  const [path] = location.hash.split("?"), query = new URLSearchParams([...pins].map((pin) => ["pin", pin])).toString();
  const hash = query ? `${path}?${query}` : path;
  if (hash !== location.hash) history.replaceState(history.state, "", hash || location.pathname);
}
